"""The story of a batch size search."""

from collections.abc import Sequence
from math import sqrt

from stepscope.batch.document import Batch, SizeRow
from stepscope.batch.search import BatchNote, BatchNoteKind, SearchStop, StopKind
from stepscope.record.trial import TrialReason, TrialStatus
from stepscope.record.units import (
    format_duration,
    format_interval,
    format_share,
    interval_tells,
    plural,
)
from stepscope.report.story.blocks import (
    Block,
    Chart,
    Column,
    Command,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.phrases import display_path, joined, torch_text
from stepscope.results.load import LoadedResult
from stepscope.stats.verdict import Verdict

_MIB = 2.0**-20
_LAYERWISE = ("lamb", "lars")
_LINEAR = ("sgd", "muon", "lion", "asgd")


def story_of_batch(subject: LoadedResult) -> Story:
    """The full story of a batch size search."""
    return batch_story(subject.decoded(Batch))


def batch_story(batch: Batch) -> Story:
    """The same for a result."""
    spent = plural(batch.processes, "process", "processes")
    sections = (_curve_section(batch), _charts_section(batch), _training_section(batch))

    return Story(
        title=f"batch size of {display_path(batch.program)}" if batch.program else "batch size",
        verdict=verdict_sentence(batch),
        subtitle=joined(
            str(batch.device_name or batch.device.upper()),
            torch_text(batch.versions.get("torch")),
            f"{spent}, {format_duration(batch.seconds)}",
        ),
        sections=tuple(part for part in sections if part.blocks),
        kind="batch",
        next=_next(batch),
    )


def batch_section(batch: Batch) -> Section:
    """The whole search as one section of another story."""
    blocks: list[Block] = [Paragraph(verdict_sentence(batch), strong=True)]
    for part in (_charts_section(batch), _curve_section(batch), _training_section(batch)):
        blocks += part.blocks
    return Section("batch", "Batch size", tuple(blocks))


def verdict_sentence(batch: Batch) -> str:
    """The verdict: which size to use."""
    knee = batch.knee
    if knee is None:
        if batch.largest is None:
            return "No batch size that was tried runs."
        return f"No batch size that runs leaves {batch.headroom:.0%} of memory free."
    if knee.batch == batch.own:
        text = f"Keep the program's own batch of {knee.batch:,}: no other size "
        if len(batch.curve) > 1:
            text += f"gives over {batch.within:.0%} more samples/s"
        else:
            why = stop_text(batch.stopped) if batch.stopped is not None else "nothing else runs"
            text += f"could be tried ({why})"
    else:
        text = f"Batch {knee.batch:,}: {knee.samples_per_s or 0.0:,.0f} samples/s"
        if (gain := knee.speedup) is not None and batch.own is not None:
            around = format_interval(gain.low, gain.high)
            if gain.verdict is Verdict.UNCLEAR and interval_tells(gain.low, gain.high):
                around += ", unclear"
            text += f", {gain.ratio:.2f}× the program's own {batch.own:,} ({around})"
    if knee.growing:
        text += "; throughput still grows there"
    return f"{text}{' (measured once: not confirmed)' if knee.processes < 2 else ''}."


def _failure_text(row: SizeRow) -> str:
    if row.status is TrialStatus.OUT_OF_MEMORY:
        return "OOM"
    if row.status is TrialStatus.TOO_SHORT and row.reason is TrialReason.TOO_FEW_STEADY:
        return "the program ends before its speed shows"
    words = row.detail or row.status.label
    broke = row.status in (TrialStatus.BROKE, TrialStatus.TIMED_OUT) and row.detail
    return f"{row.status.label}: {words}" if broke else words


def stop_text(stop: SearchStop) -> str:
    """Why no larger size was tried."""
    size = f"{stop.batch:,}" if stop.batch is not None else ""
    if stop.tried:
        if stop.status is TrialStatus.OUT_OF_MEMORY:
            return f"{size} runs out of memory"
        if stop.status is TrialStatus.TOO_SHORT:
            return f"{size}: the program ends after {plural(stop.steps or 0, 'step')}"
        return f"{size}: {stop.detail or (stop.status or TrialStatus.FAILED).label}"
    than = f"{stop.than:,}" if stop.than is not None else ""
    return {
        StopKind.MEMORY: f"{size} should not fit into memory",
        StopKind.ROOM: f"{size} should take {format_share(stop.share or 0.0)} of the free memory",
        StopKind.FLAT: f"throughput hardly grows beyond {size}",
        StopKind.FALLS: f"{size} is slower than {than}",
        StopKind.LIMIT: f"{size} is the largest allowed",
        StopKind.EPOCH: f"{size} is more than the {than} samples of an epoch",
        StopKind.BUDGET: f"no time left for {size}",
        StopKind.INTERRUPTED: "interrupted",
    }.get(stop.kind, stop.kind.value)


def _note_text(note: BatchNote) -> str:
    size = f"{note.batch:,}" if note.batch is not None else ""
    share = min(note.share or 0.0, 1.0)
    return {
        BatchNoteKind.NO_TIME: f"no time left for {size}",
        BatchNoteKind.FITS_SLOW: f"about {size} should fit; not tried, as it would take long",
        BatchNoteKind.FITS_NO_TIME: f"about {size} should fit; no time left to try",
        BatchNoteKind.MEASURED_ONCE: "no time left for second processes",
        BatchNoteKind.NOISY: f"run-to-run noise is ±{share:.0%}: closer sizes cannot be ranked. Use"
        " a quieter machine or a longer --seconds",
    }[note.kind]


def _curve_section(batch: Batch) -> Section:
    blocks: list[Block] = [size_table(batch)]
    knee, largest = batch.knee, batch.largest
    if knee is not None:
        rule = f"Knee: the smallest within {batch.within:.0%} of the best that leaves"
        blocks.append(Paragraph(f"{rule} {batch.headroom:.0%} of memory free.", tone=Tone.QUIET))
    if largest is not None and largest.bounded:
        share = largest.memory_share
        words = f", {share:.0%} of memory" if share is not None else ""
        words += f"; {largest.too_large:,} does not" if largest.too_large is not None else ""
        blocks.append(Paragraph(f"Largest that fits: {largest.batch:,}{words}."))
    if batch.stopped is not None:
        blocks.append(Paragraph(f"Stopped: {stop_text(batch.stopped)}."))
    if knee is not None and knee.batch == batch.own == batch.curve[0].batch:
        least = max(1, knee.batch // 4)
        blocks.append(Paragraph(f"Smaller sizes were not tried: --min {least}.", tone=Tone.QUIET))
    blocks += [Paragraph(f"Note: {_note_text(one)}.", tone=Tone.WARN) for one in batch.notes]
    return Section("batch", "", tuple(blocks), Weight.LEAD)


def size_table(batch: Batch) -> Table:
    """One row per size, marking the program's own, the knee and the largest."""
    knee, largest = batch.knee, batch.largest
    marks = {
        "own": batch.own,
        "knee": None if knee is None else knee.batch,
        "largest": largest.batch if largest is not None and largest.bounded else None,
    }

    def what(row: SizeRow) -> str:
        named = [name for name, size in marks.items() if size == row.batch]
        return ", ".join(named if row.ok else [_failure_text(row), *named])

    def spread(row: SizeRow) -> float | None:
        if row.low is None or row.high is None or not row.samples_per_s:
            return None
        return min(1.0, (row.high - row.low) / 2 / row.samples_per_s)

    def tone(row: SizeRow) -> Tone:
        if row.batch == marks["knee"]:
            return Tone.GOOD
        return Tone.PLAIN if row.ok else Tone.WARN

    memory = Column.numeric("memory MiB", digits=4)
    best = Column("of best", number=True, percent=True, digits=2, priority=2)
    table = Table.of(
        "batch-sizes",
        "",
        batch.curve,
        (Column.numeric("batch", digits=9), lambda row: row.batch),
        (Column.numeric("samples/s", digits=4), lambda row: row.samples_per_s),
        (Column("±", number=True, digits=2, percent=True, priority=3), spread),
        (best, lambda row: row.of_best),
        (Column.numeric("step ms", priority=1), lambda row: row.step_ms),
        (memory, lambda row: scaled(row.memory_bytes or None, _MIB)),
        (Column.numeric("J/sample", priority=5), lambda row: row.energy_j_per_sample),
        (Column.numeric("processes", priority=6), lambda row: row.processes),
        (Column("what"), what),
        shown=40,
        tones=tuple(map(tone, batch.curve)),
    )
    return table.without_empty_columns()


def _charts_section(batch: Batch) -> Section:
    rows = [row for row in batch.curve if row.ok and row.samples_per_s]
    there = [row for row in rows if row.memory_bytes]
    blocks: list[Block] = []
    if len(rows) > 1:
        known = all(row.low is not None and row.high is not None for row in rows)
        rates = Series(
            "samples per second",
            [f"{row.batch:,}" for row in rows],
            [row.samples_per_s or 0.0 for row in rows],
            low=[row.low or 0.0 for row in rows] if known else (),
            high=[row.high or 0.0 for row in rows] if known else (),
        )
        title, x, y = "Throughput by batch size", "batch size", "samples per second"
        blocks.append(Chart.lines("batch-throughput", title, rates, x=x, y=y))
    if len(rows) > 1 and there:
        amounts = [(row.memory_bytes or 0.0) * _MIB for row in there]
        memory = Series("peak memory", [f"{row.batch:,}" for row in there], amounts)
        title = "Peak memory by batch size"
        blocks.append(Chart.lines("batch-memory", title, memory, x="batch size", y="MiB"))
    return Section("batch-charts", "Throughput and memory", tuple(blocks))


def _training_section(batch: Batch) -> Section:
    """How another batch size changes training; empty if it is unchanged."""
    knee, own = batch.knee, batch.own
    nothing = Section("batch-training", "", ())
    if knee is None or own is None or knee.batch == own or batch.what != "training":
        return nothing
    if min(knee.batch, own) < 1:  # no batch of anything, but a file may say so
        return nothing
    lines = training_sentences(own, knee.batch, batch.samples, batch.drop_last, batch.optimizers)
    size = "larger" if knee.batch > own else "smaller"
    title = f"A {size} batch changes training"
    return Section("batch-training", title, tuple(map(Paragraph, lines)), Weight.LEAD)


def training_sentences(
    before: int,
    after: int,
    samples: int | None,
    drop_last: bool,
    optimizers: Sequence[tuple[str, float | None]],
) -> list[str]:
    """Updates, learning rate, schedule, losses. `samples` per epoch, None: unknown."""
    factor = after / before
    way = f"divide them by {factor:.3g}" if factor > 1 else f"multiply them by {1 / factor:.3g}"
    return [
        _updates(before, after, samples, drop_last),
        *(_rate(name, lr, factor) for name, lr in optimizers[:2]),
        f"Step counts in the program (schedules, limits) are unchanged: {way}.",
        "Losses cannot be compared step by step: compare at equal numbers of samples, and judge"
        " by the final validation score.",
    ]


def updates_per_epoch(samples: int, batch: int, drop_last: bool) -> int:
    """Batches per epoch."""
    return samples // batch if drop_last else -(-samples // batch)


def _updates(before: int, after: int, samples: int | None, drop_last: bool) -> str:
    if samples is None:
        more = "fewer" if after > before else "more"
        factor = max(before, after) / min(before, after)
        return f"{factor:.3g} times {more} updates for the same data."
    was, now = (updates_per_epoch(samples, batch, drop_last) for batch in (before, after))
    words = f"{now:,} updates per epoch instead of {was:,}."
    lost = samples % after if drop_last else 0
    if lost > samples % before and lost > samples / 20:
        words += f" drop_last leaves out {lost:,} of {samples:,} samples per epoch."
    return words


def _rate(name: str, lr: float | None, factor: float) -> str:
    kind = name.lower()
    if any(word in kind for word in _LAYERWISE):
        return f"{name} is made for large batches: its usual rule is the square root."
    linear = kind in _LINEAR
    scaled = factor if linear else sqrt(factor)
    rule = "linearly with the batch" if linear else "with the square root of the batch"
    start = f"{name}: scale the learning rate {rule}, ×{scaled:.3g}"
    if lr:
        start += f" ({lr:.4g} → {lr * scaled:.3g})"
    return start + (", after a warm-up." if factor > 1 else ".")


def _next(batch: Batch) -> tuple[Command, ...]:
    if batch.command:
        return (Command(batch.command, "", "Run"),)
    if batch.program is None:
        return ()
    words = " ".join((batch.program, *batch.argv))
    return (Command(f"stepscope tune {words}", "what else makes it faster?"),)
