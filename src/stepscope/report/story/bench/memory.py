"""The memory study: what each technique saves, and the batch it allows."""

from collections.abc import Iterator
from math import nan

from stepscope.bench.results import MemoryStudy, PointStatus, SearchBound, TechniqueRow
from stepscope.record.units import format_bytes, format_number
from stepscope.report.story.bench.grid import outcome
from stepscope.report.story.blocks import (
    Chart,
    Column,
    Command,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import fix_options

_MIB = 2.0**-20
_BOUNDS = {
    SearchBound.LIMIT: "no larger batch was tried",
    SearchBound.TIME: "search time exhausted",
    SearchBound.FAILURE: "a larger batch failed, but not for lack of memory",
}


def answers(study: MemoryStudy) -> Iterator[str]:
    """The study in sentences."""
    best, first = _best(study), study.rows[0]
    if best is None:
        yield "Nothing fits, at any batch size."
        return
    most, largest = first.largest_batch, best.largest_batch or 0
    if not most:
        yield f"Largest batch: {largest:,}, with {best.technique}. fp32 fits none."
    elif largest == most:
        tried = "" if first.bound is SearchBound.MEMORY else ", the largest tried"
        yield f"No technique fits a larger batch than fp32: {most:,}{tried}."
    else:
        ratio = format_number(largest / most)
        yield f"{best.technique} fits a batch of {largest:,}, {ratio}× that of fp32 ({most:,})."
    known = [(one.of_first, one) for one in study.rows if one.of_first is not None]
    if len(known) > 1:
        share, lowest = min(known, key=lambda one: one[0])
        if lowest is not first:
            whole = format_bytes(first.peak_memory_bytes or 0)
            yield (
                f"Least memory at batch {study.batch:,}: {lowest.technique},"
                f" {share:.0%} of fp32's {whole}."
            )


def sections(study: MemoryStudy) -> list[Section]:
    """The table with its explanations, then charts."""
    table = Table.of(
        "techniques",
        "",
        study.rows,
        (Column("technique"), lambda one: one.technique),
        (Column("fixes", priority=3), lambda one: ",".join(one.fixes)),
        (Column.numeric("memory", "MiB", digits=4), _memory_mib),
        (Column.share("of fp32"), lambda one: one.of_first),
        (Column.numeric("samples/s", digits=4), lambda one: one.samples_per_s),
        (Column("largest batch"), _largest_batch),
        (Column.numeric("samples/s there", digits=4), lambda one: one.largest_samples_per_s),
        (Column("limited by", priority=2), lambda one: one.bound),
        (Column("outcome", priority=1), outcome),
    )
    names = [one.technique for one in study.rows]
    used = Series("", names, [_memory_mib(one) or nan for one in study.rows])
    largest = Series("", names, [one.largest_batch or nan for one in study.rows])
    charts = (
        Chart.bars("memory", f"Peak memory at batch {study.batch:,}", used, unit="MiB"),
        Chart.bars("largest", "Largest batch", largest, unit="samples"),
    )
    notes = tuple(Paragraph(text, tone=Tone.QUIET) for text in _explanations(study))
    title = "What each technique saves"
    return [
        Section("techniques", title, (table, *notes), Weight.LEAD),
        Section("technique-charts", f"{title}: charts", charts),
    ]


def command(study: MemoryStudy) -> Command:
    """The command that tries the best technique on a program."""
    best = _best(study)
    fixes = fix_options(best.fixes) if best else ""
    return Command(f"stepscope run {fixes} train.py" if fixes else "stepscope fixes")


def _best(study: MemoryStudy) -> TechniqueRow | None:
    """The technique with the largest batch, the fastest among equals; None if nothing fitted."""

    def worth(one: TechniqueRow) -> tuple[int, float]:
        return one.largest_batch or 0, one.largest_samples_per_s or 0.0

    return max((one for one in study.rows if one.largest_batch), key=worth, default=None)


def _memory_mib(one: TechniqueRow) -> float | None:
    return scaled(one.peak_memory_bytes or None, _MIB)


def _largest_batch(one: TechniqueRow) -> str | None:
    """`128+ (4×32)`."""
    if not one.largest_batch:
        return None
    mark = "" if one.bound is SearchBound.MEMORY else "+"
    parts = f" ({one.accumulate}×{one.largest_micro_batch:,})" if one.accumulate > 1 else ""
    return f"{one.largest_batch:,}{mark}{parts}"


def _explanations(study: MemoryStudy) -> Iterator[str]:
    """The table's marks, and what set the limits."""
    given = study.memory_limit_gib
    limit = f"{given:g} GiB (--memory-limit-gib)" if given else "all device memory"
    yield f"Limit: {limit}. Largest batch to 1 part in 16; each try in its own process."
    if study.device == "cpu":
        yield "Memory: everything the process holds, torch included; the limit is on allocations."
    if any(one.accumulate > 1 for one in study.rows):
        yield "(4×32): four calls of 32 samples per optimizer step."
    for one in study.rows:
        if one.status not in (PointStatus.OK, PointStatus.OUT_OF_MEMORY):
            yield f"{one.technique}: {outcome(one)}."
    for bound, words in _BOUNDS.items():
        names = [
            f"{one.technique} ({one.bound_why})" if one.bound_why else one.technique
            for one in study.rows
            if one.bound is bound
        ]
        if names:
            yield f"+ {words}: {', '.join(names)}."
