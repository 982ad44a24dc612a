"""How batches are made, why a step waits for them, and what faster loading would gain."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from stepscope.analyze.replay import changes
from stepscope.analyze.run.data_pipeline import PipelinePart, PipelineSource
from stepscope.analyze.run.document import Loader
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import site_count, time_spent
from stepscope.record.facts import SlotKind
from stepscope.record.finding import (
    ChangeKind,
    Evidence,
    FixRef,
    Place,
    Predicted,
    RefusedFix,
    Setting,
    SettingOwner,
)
from stepscope.record.frames import work_of_line
from stepscope.record.kinds import SampleWork

_LIMITS = 0.7  # of the step: workers that take longer per batch set the pace
_CPU_BOUND = 0.7  # of making a batch: the rest is then mostly waiting for a busy core
_MOST_WORKERS_A_CORE = 4  # workers per core at most, however little they work
_USUAL_CORES = 4  # if the number of usable cores is unknown
_RANDOM = re.compile(r"(?i)rand|jitter|augment|mixup|cutmix|noise|erasing|dropout|shuffle|sample\(")
_TINY_MS, _SMALL_MS = 0.05, 0.1  # a sample made faster than this is mostly overhead,
_MANY = 256  # in batches of at least this many: smaller ones are fast for another reason
_MOSTLY = 0.4
_WORKED = 0.3  # of the time a core: less, and decoding is not what takes it
_ENOUGH = 1.03  # of the shortest possible step: fewer workers do as well


class DataWait(Enum):
    """Why a step waits for data; each reason has its rule."""

    RESTARTED_WORKERS = auto()
    TINY_SAMPLES = auto()
    SLOW_STORAGE = auto()
    SLOW_DECODING = auto()
    LATE_BATCHES = auto()
    FEW_WORKERS = auto()
    SLOW_SAMPLES = auto()


@dataclass(frozen=True, slots=True)
class Loading:
    """How the batches of the step are made. Times are per step."""

    case: Case
    loader: Loader
    source: PipelineSource | None
    """The dataset's fetches; None where none were seen."""
    wait_ms: float
    compute_ms: float
    """The step without waiting for data."""
    batch_ms: float
    """Time to make a step's batches in one process."""
    workers: int
    cores: int
    """Usable ones."""

    @property
    def share(self) -> float:
        """The part of the step that waits for data."""
        return self.wait_ms / self.case.step_ms

    @property
    def core_share(self) -> float:
        """The part of making a batch that needs a core; all of it where that is not known."""
        share = self.source.processor_share if self.source else None
        return 1.0 if share is None else share

    @property
    def most(self) -> int:
        """The most workers for these cores: one each, more if they wait for storage."""
        if self.core_share > _CPU_BOUND:
            return self.cores
        return int(self.cores / max(self.core_share, 1 / _MOST_WORKERS_A_CORE))

    @property
    def limits(self) -> bool:
        """Whether making batches sets the step's pace, beyond an occasional late batch."""
        step_ms = self.compute_ms + self.wait_ms
        return self.workers == 0 or self.batch_ms / self.workers >= _LIMITS * step_ms

    @property
    def needed(self) -> int:
        """The workers needed to hide loading behind compute, plus one."""
        hidden = math.ceil(self.batch_ms / max(self.compute_ms, 1e-3))
        return max(1, min(hidden + 1, self.most))

    @property
    def parts(self) -> list[PipelinePart]:
        """What making a batch spends its time on, largest first."""
        parts = self.source.parts if self.source else ()
        return [part for part in parts if part.what != SlotKind.REST]

    @property
    def epochs(self) -> int:
        """How often the data was gone through, at least 1."""
        return max(1, site_count(self.case, "epoch_start"))

    @property
    def waits_because(self) -> DataWait | None:
        """Why the step waits for data; None if the wait is too short to matter."""
        if self.share < LEAST_GAIN:
            return None
        if self.workers and site_count(self.case, "epoch_start") > self.case.run_steps / 2 > 0:
            return DataWait.RESTARTED_WORKERS
        if self._samples_are_tiny():
            return DataWait.TINY_SAMPLES
        if not self.limits:
            starts = time_spent(self.case, "epoch_start")
            matter = starts is not None and starts.share >= LEAST_GAIN
            return None if matter else DataWait.LATE_BATCHES
        reading, decoding = (sum(one.share for one in some) for some in self._read_and_decoded)
        if reading >= max(_MOSTLY, decoding):
            return DataWait.SLOW_STORAGE
        if 0 < self.workers < self.most:
            return DataWait.FEW_WORKERS
        return DataWait.SLOW_DECODING if decoding >= _MOSTLY else DataWait.SLOW_SAMPLES

    def _samples_are_tiny(self) -> bool:
        """Whether samples are so small that fetching them one by one takes most of the time."""
        each = self.source.ms_per_sample if self.source else None
        if self.source is None or each is None or self.source.ms_per_batch < _MANY * each:
            return False
        return each <= _TINY_MS or (each <= _SMALL_MS and self.source.collate_share >= 0.5)

    def _line(self, part: PipelinePart) -> str:
        """A part's source line, "" if unknown."""
        return (self.case.source(part.file, part.line) or "") if part.file and part.line else ""

    def parts_that(self, work: SampleWork) -> list[PipelinePart]:
        """The parts that do this; lines in which no library was seen to, by their source."""
        return [one for one in self.parts if work is (one.work or work_of_line(self._line(one)))]

    @property
    def _read_and_decoded(self) -> tuple[list[PipelinePart], list[PipelinePart]]:
        """Decoders read too: where cores are hardly needed, they wait for bytes."""
        read, decoded = map(self.parts_that, (SampleWork.READING, SampleWork.DECODING))
        return ([*read, *decoded], []) if self.core_share < _WORKED else (read, decoded)

    @property
    def reading_parts(self) -> list[PipelinePart]:
        """Those that wait for bytes, largest first."""
        return sorted(self._read_and_decoded[0], key=lambda one: -one.share)

    @property
    def draws_randomly(self) -> bool:
        """Whether samples depend on random draws, judged by the names and lines of their parts."""
        return any(
            _RANDOM.search(part.name) or _RANDOM.search(self._line(part)) for part in self.parts
        )

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """What every finding about a wait for data rests on."""
        return (
            Evidence("data wait", self.wait_ms, "ms per step"),
            Evidence("making a batch in one process", self.batch_ms, "ms"),
            Evidence("rest of the step", self.compute_ms, "ms per step"),
            Evidence("workers", self.workers),
            Evidence("free cores", self.cores),
        )

    def places(self, *parts: PipelinePart | PipelineSource) -> tuple[Place, ...]:
        """The lines of parts, then the loader's."""
        known = [(one.file, one.line) for one in (*parts, self.loader)]
        return tuple(dict.fromkeys(Place(file, line) for file, line in known if file))

    @property
    def crowd(self) -> str:
        """Why more workers are not promised on a busy machine, as a sentence; "" on others."""
        return "Other processes use the cores more workers need." if self.case.crowded else ""

    def more_workers(self) -> tuple[int, Predicted | None]:
        """The fewest workers that do as well as any number, and the step with them.

        No prediction if they gain nothing, there cannot be more than now, or other processes use
        the cores they would need.
        """
        if self.case.crowded:
            return self.needed, None
        least = max(self.needed, self.workers + 1)
        counts = sorted({count for count in (least, 2 * least, self.most) if count <= self.most})
        found = [(count, self._with_workers(count)) for count in counts]
        gaining = [(count, one) for count, one in found if one is not None]
        if not gaining:
            return self.needed, None
        best = min(one.step_ms for _, one in gaining)
        return next((count, one) for count, one in gaining if one.step_ms <= _ENOUGH * best)

    def _with_workers(self, count: int) -> Predicted | None:
        """The step with this many workers: replayed, else the longer of computing and loading."""
        if self.case.model is not None:
            found = self.case.predict(changes.set_workers(count))
        else:
            least_ms = self.compute_ms
            if self.case.device == "cpu":  # workers share the step's cores: all work counts
                threads = min(self.cores, max(1, self.case.switches.threads or self.cores))
                work_ms = threads * self.compute_ms + self.batch_ms
                least_ms = max(least_ms, work_ms / self.cores)
            found = self.case.reach(max(least_ms, self.batch_ms / count), doubt=0.3)
        if found is None:
            return None
        some = "1 worker" if count == 1 else f"{count} workers"
        gain = in_ms(self.case.step_ms - found.step_ms)
        return replace(found, reason=f"{some} hide {gain} ms of data wait behind compute")

    def with_batch_time(self, factor: float, reason: str) -> Predicted | None:
        """The step if a batch takes `factor` times as long to make."""
        if self.case.model is not None:
            return self.case.predict(changes.scale_batch_time(factor), reason=reason, doubt=0.3)
        left = factor * self.batch_ms / max(1, self.workers)
        after = max(self.compute_ms, left) if self.workers else self.compute_ms + left
        return self.case.reach(after, reason, doubt=0.4)

    def best_fix(self) -> tuple[FixRef | None, Predicted | None, ChangeKind]:
        """Workers, or a cache if that gains clearly more; and the kind of change."""
        random, kept = self.draws_randomly, None
        count, hidden = self.more_workers()
        named = self.loader.dataset == "TensorDataset" or self.loader.samples is None
        if not (self.workers or self.epochs < 2 or named or random):
            again = self.source.collate_share if self.source else 0.0
            reason = f"epochs 2 to {self.epochs} reuse the samples of the first"
            kept = self.with_batch_time(again + (1 - again) / self.epochs, reason)
        cache, workers = FixRef("cache"), FixRef("workers", str(count))
        kept = kept if self.case.may_apply(cache) else None
        hidden = hidden if self.case.may_apply(workers) else None
        if kept is not None and (hidden is None or kept.step_ms < 0.9 * hidden.step_ms):
            return cache, kept, ChangeKind.EXACT
        kind = ChangeKind.NUMERIC if random else ChangeKind.EXACT
        if hidden is None or 0 < count <= self.workers:
            return None, None, kind
        return workers, hidden, kind

    @property
    def refused(self) -> tuple[RefusedFix, ...]:
        """Why more workers would not be had."""
        return self.case.objections(FixRef("workers", str(max(self.needed, self.workers + 1))))


def loading(case: Case) -> Loading | None:
    """How the case's batches are made; None if no loader was seen."""
    run = case.show
    if run is None or not run.loaders or case.step_ms <= 0:
        return None
    # The training data's loader: the largest one of the dataset that took most time.
    busiest = {source.dataset for source in run.pipeline[:1]}
    same = [one for one in run.loaders if one.dataset in busiest] or run.loaders
    loader = max(same, key=lambda one: math.inf if one.samples is None else one.samples)
    sources = [one for one in run.pipeline if one.dataset == loader.dataset] or run.pipeline
    source = sources[0] if sources else None
    wait_ms, workers = case.phases.get("data_wait", 0.0), loader.num_workers or 0
    samples, batch = run.steps.samples_per_step, loader.batch_size
    batches = max(1, round(samples / batch)) if samples and batch else 1  # accumulated ones
    made = source.ms_per_batch * batches if source else 0.0
    return Loading(
        case=case,
        loader=loader,
        source=source,
        wait_ms=wait_ms,
        compute_ms=max(case.step_ms - wait_ms, 0.0),
        # Workers are not recorded; batches the host makes are slowed by recording.
        batch_ms=made if workers else wait_ms or made,
        workers=workers,
        cores=max(1, int(case.free_cores or _USUAL_CORES)),
    )


def waiting_because(case: Case, reason: DataWait) -> Loading | None:
    """How batches are made, if the step waits for them for this reason."""
    how = loading(case)
    return how if how is not None and how.waits_because is reason else None


def part_evidence(parts: Iterable[PipelinePart]) -> tuple[Evidence, ...]:
    """The share of making a batch that these parts take."""
    return tuple(Evidence(one.name, 100 * one.share, "% of a batch") for one in parts)


def loader_setting(name: str, value: object) -> Setting:
    """An argument of the DataLoader."""
    return Setting(SettingOwner.LOADER, name, str(value))
