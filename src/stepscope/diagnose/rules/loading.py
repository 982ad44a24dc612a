"""How batches are made, why a step waits for them, and what faster loading would gain."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from stepscope.analyze.replay import changes
from stepscope.analyze.run.data_pipeline import PipelinePart, PipelineSource
from stepscope.analyze.run.document import Loader, RunSummary
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import run_steps, site_count, switches, time_spent
from stepscope.record.facts import SlotKind
from stepscope.record.finding import (
    ChangeKind,
    Evidence,
    FixRef,
    Place,
    Predicted,
    Setting,
    SettingOwner,
    TimelineHint,
)
from stepscope.record.kinds import IdleCause

LOADER_TIMELINE = TimelineHint(IdleCause.LOADER, ("enumerate(DataLoader)",))

_LIMITS = 0.7  # of the step: workers that need longer for a batch set its pace
_CPU_BOUND = 0.7  # of making a batch: the rest is then rather waiting for a core that others have
_MOST_WORKERS_A_CORE = 4  # workers to a core at most, however little they work
_USUAL_CORES = 4  # where it is not known how many may be used


@dataclass(frozen=True, slots=True)
class Loading:
    """How the batches of the step are made. Times are per step."""

    loader: Loader
    source: PipelineSource | None
    """The dataset's fetches; None where none were seen."""
    wait_ms: float
    share: float
    compute_ms: float
    """The step without waiting for data."""
    batch_ms: float
    """To make a step's batches in one process."""
    workers: int
    cores: int
    """Usable ones."""

    @property
    def most(self) -> int:
        """Workers that these cores have room for: one each, more where they wait for storage."""
        share = self.source.processor_share if self.source else None
        if share is None or share > _CPU_BOUND:
            return self.cores
        return int(self.cores / max(share, 1 / _MOST_WORKERS_A_CORE))

    @property
    def limits(self) -> bool:
        """Whether making batches sets the step's pace, not merely the odd late one."""
        step_ms = self.compute_ms + self.wait_ms
        return self.workers == 0 or self.batch_ms / self.workers >= _LIMITS * step_ms

    @property
    def needed(self) -> int:
        """Workers that hide loading behind compute, and one to spare."""
        hidden = math.ceil(self.batch_ms / max(self.compute_ms, 1e-3))
        return max(1, min(hidden + 1, self.most))

    @property
    def parts(self) -> list[PipelinePart]:
        """What making a batch goes to, largest first."""
        parts = self.source.parts if self.source else ()
        return [part for part in parts if part.what != SlotKind.REST]


def loading(case: Case) -> Loading | None:
    """None where no loader was seen."""
    run = case.show
    loader = _feeding(run) if run else None
    if run is None or loader is None or case.step_ms <= 0:
        return None
    same = [one for one in run.pipeline if one.dataset == loader.dataset]
    source = next(iter(same or run.pipeline), None)
    wait_ms, workers = case.phases.get("data_wait", 0.0), loader.num_workers or 0
    samples, batch = run.steps.samples_per_step, loader.batch_size
    batches = max(1, round(samples / batch)) if samples and batch else 1  # accumulated ones
    made = source.ms_per_batch * batches if source else 0.0
    return Loading(
        loader=loader,
        source=source,
        wait_ms=wait_ms,
        share=wait_ms / case.step_ms,
        compute_ms=max(case.step_ms - wait_ms, 0.0),
        # Workers are not recorded; what the host makes in recorded steps is slowed by that.
        batch_ms=made if workers else wait_ms or made,
        workers=workers,
        cores=max(1, int(case.cores or _USUAL_CORES)),
    )


def loader_places(how: Loading, *parts: PipelinePart | PipelineSource) -> tuple[Place, ...]:
    """The lines of parts, then the loader's."""
    known = [(one.file, one.line) for one in parts] + [(how.loader.file, how.loader.line)]
    return tuple(dict.fromkeys(Place(file, line) for file, line in known if file))


def loading_evidence(how: Loading) -> tuple[Evidence, ...]:
    """What every finding about a wait for data rests on."""
    return (
        Evidence("data wait", how.wait_ms, "ms per step"),
        Evidence("making a batch in one process", how.batch_ms, "ms"),
        Evidence("rest of the step", how.compute_ms, "ms per step"),
        Evidence("workers", how.workers),
        Evidence("usable cores", how.cores),
    )


def parts_evidence(how: Loading) -> tuple[Evidence, ...]:
    """The largest parts of making a batch."""
    return part_evidence(how.parts[:3])


def part_evidence(parts: Iterable[PipelinePart]) -> tuple[Evidence, ...]:
    """What some parts take of making a batch."""
    return tuple(Evidence(one.name, 100 * one.share, "% of a batch") for one in parts)


def loader_setting(name: str, value: object) -> Setting:
    """An argument of the DataLoader."""
    return Setting(SettingOwner.LOADER, name, str(value))


def _feeding(run: RunSummary) -> Loader | None:
    """The loader of the training data: of the dataset that took most time, the largest."""
    busiest = {source.dataset for source in run.pipeline[:1]}
    same = [one for one in run.loaders if one.dataset in busiest] or run.loaders
    return max(same, key=lambda one: math.inf if one.samples is None else one.samples, default=None)


_READS = re.compile(
    r"\bopen\(|\bsleep\(|\b\w*load\w*\(|\bread\w*\(|\.read\w*\(|imread|urlopen|requests\.|h5py|"
    r"zarr|lmdb|sqlite|memmap|from_file|File\(|boto|fsspec|download"
)
_RANDOM = re.compile(r"(?i)rand|jitter|augment|mixup|cutmix|noise|erasing|dropout|shuffle|sample\(")
_TINY_MS, _SMALL_MS = 0.05, 0.1  # a sample made faster than that is mostly overhead,
_MANY = 256  # where a batch has so many: fewer are fast for another reason
_MOSTLY = 0.4


class DataWait(Enum):
    """Why a step waits for data; each has its rule."""

    RESTARTED_WORKERS = auto()
    TINY_SAMPLES = auto()
    SLOW_STORAGE = auto()
    LATE_BATCHES = auto()
    FEW_WORKERS = auto()
    SLOW_SAMPLES = auto()


def data_wait(case: Case, how: Loading | None) -> DataWait | None:
    """Why the step waits for data; None where the wait is too short to matter."""
    if how is None or how.share < LEAST_GAIN:
        return None
    if how.workers and restarts_workers(case):
        return DataWait.RESTARTED_WORKERS
    if is_tiny(how):
        return DataWait.TINY_SAMPLES
    if how.limits and reading_share(case, how) >= _MOSTLY:
        return DataWait.SLOW_STORAGE
    if not how.limits:
        return None if starts_matter(case) else DataWait.LATE_BATCHES
    return DataWait.FEW_WORKERS if 0 < how.workers < how.most else DataWait.SLOW_SAMPLES


def restarts_workers(case: Case) -> bool:
    """Whether most steps make a new iterator."""
    return site_count(case, "epoch_start") > run_steps(case) / 2 > 0


def starts_matter(case: Case) -> bool:
    """Whether the starts of epochs are a part of the run worth speaking of."""
    starts = time_spent(case, "epoch_start")
    return starts is not None and starts.share >= LEAST_GAIN


def is_tiny(how: Loading) -> bool:
    """Whether samples are so small that fetching them one by one is what takes the time."""
    each = how.source.ms_per_sample if how.source else None
    if how.source is None or each is None or how.source.ms_per_batch < _MANY * each:
        return False
    return each <= _TINY_MS or (each <= _SMALL_MS and how.source.collate_share >= 0.5)


def reading_parts(case: Case, how: Loading) -> list[PipelinePart]:
    """The dataset's lines that read, by their source."""
    return [
        part
        for part in how.parts
        if part.what == SlotKind.LINE and _READS.search(source_of_part(case, part))
    ]


def reading_share(case: Case, how: Loading) -> float:
    """What part of making a batch is reading."""
    return float(sum(part.share for part in reading_parts(case, how)))


def draws_randomly(case: Case, how: Loading) -> bool:
    """Whether samples depend on random draws, by the names and lines of their parts."""
    return any(
        _RANDOM.search(part.name) or _RANDOM.search(source_of_part(case, part))
        for part in how.parts
    )


def epochs(case: Case) -> int:
    """How often the data was gone through, at least 1."""
    return max(1, site_count(case, "epoch_start"))


def source_of_part(case: Case, part: PipelinePart) -> str:
    """A part's source line; empty where it is not known."""
    return (case.source(part.file, part.line) or "") if part.file and part.line else ""


_ENOUGH = 1.03  # of the shortest step there is: fewer workers do as well


def more_workers(case: Case, how: Loading) -> tuple[int, Predicted | None]:
    """The fewest workers that do as well as any number, and the step with them.

    No prediction where they gain nothing, or cannot be more than there are.
    """
    least = max(how.needed, how.workers + 1)
    counts = sorted({count for count in (least, 2 * least, how.most) if count <= how.most})
    found = [(count, with_workers(case, how, count)) for count in counts]
    gaining = [(count, one) for count, one in found if one is not None]
    if not gaining:
        return how.needed, None
    best = min(one.step_ms for _, one in gaining)
    return next((count, one) for count, one in gaining if one.step_ms <= _ENOUGH * best)


def with_workers(case: Case, how: Loading, count: int) -> Predicted | None:
    """The step with so many workers: replayed, else the longer of computing and loading."""
    if case.model is not None:
        found = case.predict(changes.set_workers(count))
    else:
        found = case.reach(max(_bound_ms(case, how), how.batch_ms / count), doubt=0.3)
    if found is None:
        return None
    some = "1 worker" if count == 1 else f"{count} workers"
    gain = in_ms(case.step_ms - found.step_ms)
    return replace(found, reason=f"{some} hide {gain} ms of data wait behind compute")


def _bound_ms(case: Case, how: Loading) -> float:
    """The least the step takes beside workers: where it computes on their cores, all the work."""
    if case.device != "cpu":
        return how.compute_ms
    threads = min(how.cores, max(1, switches(case).threads or how.cores))
    return max(how.compute_ms, (threads * how.compute_ms + how.batch_ms) / how.cores)


def with_batch_time(case: Case, how: Loading, factor: float, reason: str) -> Predicted | None:
    """The step where a batch takes `factor` times as long to make."""
    if case.model is not None:
        return case.predict(changes.scale_batch_time(factor), reason=reason, doubt=0.3)
    left = factor * how.batch_ms / max(1, how.workers)
    after = how.compute_ms + left if not how.workers else max(how.compute_ms, left)
    return case.reach(after, reason, doubt=0.4)


def with_cache(case: Case, how: Loading) -> Predicted | None:
    """The step with samples kept after the first epoch; None where that is no choice."""
    rounds = epochs(case)
    named = how.loader.dataset == "TensorDataset" or how.loader.samples is None
    if how.workers or rounds < 2 or named or draws_randomly(case, how):
        return None
    again = how.source.collate_share if how.source else 0.0
    factor = again + (1 - again) / rounds
    return with_batch_time(
        case, how, factor, f"epochs 2 to {rounds} reuse the samples of the first"
    )


def best_loading_fix(
    case: Case, how: Loading
) -> tuple[FixRef | None, Predicted | None, ChangeKind]:
    """Workers, or a cache where that gains clearly more; the kind of change."""
    count, hidden = more_workers(case, how)
    kept = with_cache(case, how)
    if kept is not None and (hidden is None or kept.step_ms < 0.9 * hidden.step_ms):
        return FixRef("cache"), kept, ChangeKind.EXACT
    kind = ChangeKind.NUMERIC if draws_randomly(case, how) else ChangeKind.EXACT
    if hidden is None:
        return None, None, kind
    if not how.workers or count > how.workers:
        return FixRef("workers", str(count)), hidden, kind
    return None, None, kind


def with_part_halved(case: Case, how: Loading, name: str, share: float) -> Predicted | None:
    """The step where the costliest part takes half its time."""
    found = with_batch_time(case, how, 1 - share / 2, f"if {name} took half as long")
    return found and replace(found, low=1.0)
