"""How much of a model's memory each technique saves, and how large a batch it allows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from stepscope.bench import measure_point
from stepscope.bench.grid import BenchRequest, Point, ordered_fixes
from stepscope.bench.record import Measure, ProcessRecord, Tell, results_of
from stepscope.bench.results import BatchTry, MemoryStudy, PointStatus, SearchBound, TechniqueRow
from stepscope.bench.studies.measurements import StudyMeasurements, StudySubject, study_subject
from stepscope.record.errors import UsageError
from stepscope.workloads.measure.record import ModelMeasured

PARTS: Final = 4  # batches that accumulation splits one into


@dataclass(frozen=True, slots=True)
class Technique:
    """A way to save memory; `accumulate` batches make one optimizer step (1: no accumulation)."""

    name: str
    fixes: tuple[str, ...] = ()
    accumulate: int = 1


_BASE: Final = Technique("fp32")
SINGLE: Final = (
    Technique("AMP", ("amp=bf16",)),
    Technique("checkpointing", ("checkpointing",)),
    Technique("accumulation", (f"accumulate={PARTS}",), PARTS),
    Technique("fused attention", ("sdpa",)),
)


def _accumulation(fixes: Iterable[str]) -> int:
    """How many batches these fixes put into one step."""
    from stepscope.fixes.registry import fix_named

    split = (text.partition("=") for text in fixes)
    return prod(fix_named(name).batches_per_update(value) for name, _, value in split)


def all_together(applied: Sequence[Technique]) -> Technique | None:
    """All applied techniques at once, without those that conflict with an earlier one; None for
    fewer than two."""
    from stepscope.fixes.registry import parse_fixes

    chosen: list[Technique] = []
    for technique in applied:
        fixes = [text for one in (*chosen, technique) for text in one.fixes]
        try:
            parse_fixes(fixes)
        except UsageError:
            continue
        chosen.append(technique)
    if len(chosen) < 2:
        return None
    fixes = [text for one in chosen for text in one.fixes]
    return Technique("all together", ordered_fixes(fixes), _accumulation(fixes))


_PRECISION: Final = 16  # the answer is exact to one part in this many


@dataclass(slots=True)
class LargestBatch:
    """`batch` is the largest that worked, None if none did; `too_large` the smallest that did not;
    `bound` is what ended the search."""

    batch: int | None = None
    too_large: int | None = None
    bound: SearchBound | None = None
    why: str | None = None
    tries: list[BatchTry] = field(default_factory=list)


def largest_batch(
    start: int, limit: int, seconds: float, attempt: Callable[[int], BatchTry], step: int = 1
) -> LargestBatch:
    """Search from `start` up (down if even that is too much), in multiples of `step`. `limit` is
    the largest batch to try; no try starts that should end after `seconds`, judged by how the last
    one grew. A try that fails for other reasons than memory ends the search."""
    found, left_s = LargestBatch(), seconds

    def rounded(batch: int) -> int:
        return max(1, batch // step) * step

    def fits(batch: int) -> bool:
        nonlocal left_s
        last = found.tries[-1] if found.tries else None
        if last is not None and last.seconds * max(1.0, batch / last.batch) > left_s:
            found.bound = SearchBound.TIME
            return False
        tried = attempt(batch)
        found.tries.append(tried)
        left_s -= tried.seconds
        if tried.status is PointStatus.OK:
            found.batch = batch
        elif tried.status is PointStatus.OUT_OF_MEMORY:
            found.too_large = batch
        else:
            timed_out = tried.status is PointStatus.TIMED_OUT
            found.bound = SearchBound.TIME if timed_out else SearchBound.FAILURE
            found.why = tried.why
        return tried.status is PointStatus.OK

    batch, most = rounded(min(start, limit)), rounded(limit)
    while fits(batch):
        if batch >= most:
            found.bound = SearchBound.LIMIT
            break
        batch = min(2 * batch, most)
    while found.bound is None and found.too_large is not None:
        low, high = found.batch or 0, found.too_large
        middle = rounded((low + high) // 2)
        if not low < middle < high or high - low <= low // _PRECISION:
            break
        fits(middle)
    found.bound = found.bound or SearchBound.MEMORY
    return found


_STEPS: Final = 8  # of a try: by the third step the optimizer's state is allocated
_FINE: Final = 16


@dataclass(slots=True)
class _TechniqueRows:
    """Measures techniques on one device; every try is a separate process."""

    about: StudySubject
    device: str
    limit: int
    seconds: float  # seconds for the search of one technique
    kept: StudyMeasurements
    tell: Tell
    device_name: str | None = None

    def row(self, technique: Technique) -> TechniqueRow:
        batch, parts = self.about.batch, technique.accumulate
        plain = TechniqueRow(technique=technique.name, fixes=technique.fixes, accumulate=parts)
        if batch < parts:
            return replace(plain, why=f"a batch of {batch} does not split into {parts}")
        self.tell(f"{technique.name}: peak memory at batch {batch:,}")
        first = self._try(technique, batch)
        if first.measured is not None:
            self.device_name = self.device_name or first.measured.device_name
        refused = _refused(first, technique.fixes)
        if refused is not None:
            return replace(plain, why=refused)
        worked = first.status is PointStatus.OK
        steady = self._steady(technique, batch) if worked else first
        status, why = steady.status, steady.why
        if status not in (PointStatus.OK, PointStatus.OUT_OF_MEMORY):
            return replace(plain, status=status, why=why)
        peak = max(_peak_bytes(one) or 0 for one in (first, steady))
        row = self._with_largest(technique, plain)
        if not worked and row.largest_batch:
            # Memory may have run out before the fixes took effect: a batch that fits shows it.
            refused = _refused(self._steady(technique, row.largest_batch), technique.fixes)
            if refused is not None:
                return replace(plain, why=refused)
        return replace(
            row,
            status=status,
            why=why,
            applies=True,
            peak_memory_bytes=peak if status is PointStatus.OK else None,
            samples_per_s=_rate(steady),
        )

    def _with_largest(self, technique: Technique, row: TechniqueRow) -> TechniqueRow:
        def attempt(batch: int) -> BatchTry:
            if batch != self.about.batch:
                self.tell(f"{technique.name}: does batch {batch:,} fit?")
            tried = self._try(technique, batch)
            return BatchTry(batch, tried.status, tried.why, tried.seconds, _peak_bytes(tried))

        parts = technique.accumulate
        found = largest_batch(self.about.batch, self.limit, self.seconds, attempt, parts)
        most, too_large, bound, rate = found.batch, found.too_large, found.bound, None
        while most:
            steady = self._steady(technique, most)
            rate = _rate(steady)
            if steady.status is not PointStatus.OUT_OF_MEMORY:
                break
            # It fitted for a few steps but not for many.
            less = (most - max(parts, most // _FINE)) // parts * parts
            most, too_large, bound = less or None, most, SearchBound.MEMORY
        return replace(
            row,
            largest_batch=most,
            largest_micro_batch=most // parts if most else None,
            too_large=too_large,
            bound=bound,
            bound_why=found.why,
            largest_samples_per_s=rate,
            tries=tuple(found.tries),
        )

    def _try(self, technique: Technique, batch: int) -> ProcessRecord:
        """A few steps: do they fit?"""
        return self.kept(self._point(technique, batch, steps=_STEPS))

    def _steady(self, technique: Technique, batch: int) -> ProcessRecord:
        """Enough steps to know the throughput."""
        self.tell(f"{technique.name}: throughput at batch {batch:,}")
        return self.kept(self._point(technique, batch))

    def _point(self, technique: Technique, batch: int, **more: Any) -> Point:
        """The point of a batch; by default its samples are one batch on the device."""
        micro = batch // technique.accumulate
        own = {"data": "resident", "test_samples": min(micro, 64), "samples": micro}
        settings = {**own, **self.about.settings, **more}
        if "steps" in more:
            for name in ("seconds", "epochs", "target_score"):
                settings.pop(name, None)
        model, fixes = self.about.model, technique.fixes
        return Point.of(model, "train", micro, self.device, fixes, **settings)


def _peak_bytes(record: ProcessRecord) -> int | None:
    measured = record.measured if record.status is PointStatus.OK else None
    return measured.peak_memory_bytes if isinstance(measured, ModelMeasured) else None


def _rate(record: ProcessRecord) -> float | None:
    rates = [one.samples / one.elapsed_s for one in results_of([record]) if one.elapsed_s]
    return rates[0] if rates else None


def _refused(record: ProcessRecord, fixes: Sequence[str]) -> str | None:
    """Why no fix applied; None if one did, if there are none, or if the process failed."""
    reports = record.fixes if fixes and record.status is PointStatus.OK else ()
    if not reports or any(fix.state == "applied" for fix in reports):
        return None
    return "; ".join(reason for fix in reports for reason in fix.reasons) or "no effect"


BATCH_LIMIT: Final = 65_536


def run(
    request: BenchRequest,
    folder: Path,
    tell: Tell,
    *,
    measure: Measure = measure_point.measure,
    seconds: float = 180.0,
) -> MemoryStudy:
    """A row for each technique; the last is all that apply together. Raises UsageError for a
    request it cannot answer."""
    about = study_subject(request)
    if len(request.devices) != 1:
        raise UsageError("--study memory takes one device: --device cuda")
    device = request.devices[0]
    if device == "cpu" and about.settings.get("memory_limit_gib") is None:
        raise UsageError("--study memory on the CPU needs --memory-limit-gib: it fills the memory")
    samples, memory = (about.settings.get(name) for name in ("samples", "memory_limit_gib"))
    limit = min(BATCH_LIMIT, samples) if isinstance(samples, int) else BATCH_LIMIT
    if limit < about.batch:
        begins = f"--study memory begins at batch {about.batch}"
        raise UsageError(f"{begins}, above its limit of {limit}")
    kept = StudyMeasurements(folder, measure, request.timeout_s)
    bench = _TechniqueRows(about, device, limit, seconds, kept, tell)
    known = {technique.fixes for technique in (_BASE, *SINGLE)}
    asked = [  # further fixes from `--fix`, under their own names
        Technique(variant.label, variant.fixes, _accumulation(variant.fixes))
        for variant in request.variants
        if variant.fixes not in known
    ]
    rows = [bench.row(technique) for technique in (_BASE, *SINGLE, *asked)]
    applied = {row.technique for row in rows if row.applies}
    combined = all_together([one for one in SINGLE if one.name in applied])
    if combined is not None:
        rows.append(bench.row(combined))
    first = rows[0].peak_memory_bytes
    return MemoryStudy(
        model=about.model,
        batch=about.batch,
        device=device,
        device_name=bench.device_name,
        memory_limit_gib=memory if isinstance(memory, int | float) else None,
        batch_limit=limit,
        settings=about.settings,
        rows=tuple(
            replace(row, of_first=row.peak_memory_bytes / first)
            if row.peak_memory_bytes and first
            else row
            for row in rows
        ),
    )
