"""The study of one model on both devices: the speedup, its cause, and whether both learn the
same."""

from collections.abc import Iterator, Sequence
from math import nan
from typing import TypeVar

from stepscope.bench.results import (
    Agreement,
    CpuGpuStudy,
    LossPoint,
    PointStatus,
    ScorePoint,
    StudySide,
)
from stepscope.record.units import format_duration, format_interval, format_number
from stepscope.report.story.blocks import (
    Block,
    Chart,
    Column,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.series import MAX_POINTS

T = TypeVar("T")
_MIB = 2.0**-20
_IN_TABLE = 6  # points of a curve
_BUSY = 0.9  # of a step: a GPU that computes for longer does not count as waiting


def answers(study: CpuGpuStudy) -> Iterator[str]:
    """The study in sentences."""
    for side, name in _sides(study):
        if side.status is not PointStatus.OK:
            yield f"{name}: {side.status.label}{f': {side.why}' if side.why else ''}."
    gain = study.speedup
    if gain is None:
        return
    noise = "" if gain.verdict in ("FASTER", "SLOWER") else ", within noise"
    interval = format_interval(gain.low, gain.high)
    yield f"The GPU is {format_number(gain.ratio)}× as fast as the CPU ({interval}){noise}."
    if study.saved is not None:
        pairs = ((study.saved.epoch_s, "epoch"), (study.saved.train_s, "training"))
        parts = [
            f"{format_duration(abs(seconds))} {'saved' if seconds >= 0 else 'lost'} per {what}"
            for seconds, what in pairs
            if seconds is not None
        ]
        if parts:
            yield f"{', '.join(parts)}."
    if study.agreement is not None:
        yield from _agreement(study, study.agreement)


def _agreement(study: CpuGpuStudy, found: Agreement) -> Iterator[str]:
    """Whether both learned the same."""
    if (first := found.first_loss_relative) is not None:
        how = f"within {_percent(first)}" if first else "exactly"
        yield f"Losses of the first {found.first_steps} steps agree {how}."
    if found.same is None:
        return
    verdict = f"{'same' if found.same else 'not the same'} within {found.within:.0%}"
    if found.final_score_difference is not None:
        scores = f"{study.cpu.score or 0.0:.4f} (CPU) and {study.gpu.score or 0.0:.4f} (GPU)"
        yield f"Final {_score_name(study)} {scores}: {verdict}."
    else:
        yield f"Final losses differ by {_percent(found.final_loss_relative or 0.0)}: {verdict}."


def sections(study: CpuGpuStudy) -> list[Section]:
    """Sections with something to show."""
    made = [Section("devices", "Both devices", (_devices(study),), Weight.LEAD)]
    if curves := _curves(study):
        made.append(Section("learning", "What both learn", tuple(curves), Weight.LEAD))
    if study.operators:
        operators = Table.of(
            "operators",
            "",
            study.operators,
            (Column("operators"), lambda one: one.kind),
            (Column.numeric("CPU", "ms"), lambda one: one.cpu_ms),
            (Column.share("CPU share", priority=1), lambda one: one.cpu_share),
            (Column.numeric("GPU", "ms"), lambda one: one.gpu_ms),
            (Column.share("GPU share", priority=1), lambda one: one.gpu_share),
            (Column.numeric("speedup", "×"), lambda one: one.speedup),
            (Column.numeric("possible", "×", priority=2), lambda one: one.possible),
        )
        blocks: list[Block] = [operators]
        found = study.waiting
        if found is not None and found.busy_ms <= _BUSY * found.step_ms:
            busy = f"GPU busy {format_number(found.busy_ms)} of {format_number(found.step_ms)} ms"
            rest = "it waits for the host the rest of the time."
            blocks.append(Paragraph(f"{busy} per step; {rest}"))
        reasons = [f"{one.kind}: {one.why}." for one in study.operators if one.why]
        blocks += [Paragraph(text, tone=Tone.QUIET) for text in reasons]
        title = "Where the speedup comes from"
        made.append(Section("operators", title, tuple(blocks), Weight.LEAD))
        made.append(Section("operator-chart", "Speedup by operator", (_operator_chart(study),)))
    return made


def _sides(study: CpuGpuStudy) -> tuple[tuple[StudySide, str], ...]:
    return (study.cpu, "CPU"), (study.gpu, "GPU")


def _score_name(study: CpuGpuStudy) -> str:
    return (study.cpu.score_name or "score").replace("_", " ")


def _devices(study: CpuGpuStudy) -> Table:
    memory = Column.numeric("memory", "MiB", digits=4, priority=1)
    return Table.of(
        "devices",
        "",
        _sides(study),
        (Column(""), lambda one: one[1]),
        (Column("device", priority=3), lambda one: one[0].device_name),
        (Column.numeric("samples/s", digits=4), lambda one: one[0].samples_per_s),
        (Column.numeric("step", "ms"), lambda one: one[0].mean_ms),
        (Column.numeric("low", "ms", priority=2), lambda one: one[0].mean_low_ms),
        (Column.numeric("high", "ms", priority=2), lambda one: one[0].mean_high_ms),
        (Column.numeric("epoch", "s"), lambda one: one[0].epoch_s),
        (Column.numeric("training", "s", priority=1), lambda one: one[0].train_s),
        (memory, lambda one: scaled(one[0].peak_memory_bytes, _MIB)),
        (Column.numeric("loss", digits=4), lambda one: one[0].loss),
        (Column.numeric(_score_name(study), digits=4), lambda one: one[0].score),
        (Column("in"), lambda one: one[0].arithmetic),
    )


def _curves(study: CpuGpuStudy) -> list[Block]:
    """A chart of both curves, and a few points of each."""
    if study.curves is None:
        return []
    losses, scores, named = study.curves.losses, study.curves.scores, _score_name(study)
    made: list[Block] = []
    if len(losses) > 1:
        made.append(_curve("losses", "loss", _spread(losses, MAX_POINTS)))
    if len(scores) > 1:
        made.append(_curve("scores", named, _spread(scores, MAX_POINTS)))
    made += Table.known(
        "loss-points",
        "",
        _spread(losses, _IN_TABLE),
        (Column.numeric("step"), lambda one: one.step),
        (Column.numeric("CPU loss", digits=4), lambda one: one.cpu),
        (Column.numeric("GPU loss", digits=4), lambda one: one.gpu),
        empty_columns=True,
    )
    made += Table.known(
        "score-points",
        "",
        _spread(scores, _IN_TABLE),
        (Column.numeric("step"), lambda one: one.step),
        (Column.numeric(f"CPU {named}", digits=4), lambda one: one.cpu),
        (Column.numeric(f"GPU {named}", digits=4), lambda one: one.gpu),
        (Column.numeric("CPU after", "s"), lambda one: one.cpu_s),
        (Column.numeric("GPU after", "s"), lambda one: one.gpu_s),
        empty_columns=True,
    )
    return made


def _curve(name: str, title: str, points: Sequence[LossPoint | ScorePoint]) -> Chart:
    at = [point.step for point in points]
    cpu = Series("CPU", at, [_or_nan(point.cpu) for point in points])
    gpu = Series("GPU", at, [_or_nan(point.gpu) for point in points])
    return Chart.lines(name, f"{title} on both", cpu, gpu, x="step", y=title)


def _spread(points: Sequence[T], most: int) -> list[T]:
    """Evenly spaced points, including the first and last."""
    if len(points) <= most:
        return list(points)
    apart = (len(points) - 1) / (most - 1)
    return [points[round(n * apart)] for n in range(most)]


def _operator_chart(study: CpuGpuStudy) -> Chart:
    rows = [one for one in study.operators or () if one.speedup is not None]
    kinds = [one.kind for one in rows]
    series = [Series("measured", kinds, [_or_nan(one.speedup) for one in rows])]
    if any(one.possible is not None for one in rows):
        series.append(Series("possible", kinds, [_or_nan(one.possible) for one in rows]))
    title = "Speedup by kind of operator"
    return Chart.bars("operator-speedup", title, *series, unit="times as fast")


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _percent(share: float) -> str:
    return f"{share * 100:.3g}%"
