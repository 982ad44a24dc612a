"""The study of one model on both devices: the speedup, whether both learn the same, why."""

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
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    number_column,
)
from stepscope.report.story.series import MAX_POINTS

T = TypeVar("T")
_MIB = 2.0**-20
_IN_TABLE = 6  # points of a curve
_BUSY = 0.9  # of a step: a GPU that computes for longer is not said to wait


def cpu_gpu_answers(study: CpuGpuStudy) -> Iterator[str]:
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
    if found.first_loss_relative is not None:
        how = (
            f"within {_percent(found.first_loss_relative)}"
            if found.first_loss_relative
            else "exactly"
        )
        yield f"Losses of the first {found.first_steps} steps agree {how}."
    if found.same is None:
        return
    verdict = "same" if found.same else "not the same"
    if found.final_score_difference is not None:
        scores = f"{study.cpu.score or 0.0:.4f} (CPU) and {study.gpu.score or 0.0:.4f} (GPU)"
        yield f"Final {_score_name(study)} {scores}: {verdict} within {found.within:.0%}."
    else:
        last = _percent(found.final_loss_relative or 0.0)
        yield f"Final losses differ by {last}: {verdict} within {found.within:.0%}."


def cpu_gpu_sections(study: CpuGpuStudy) -> list[Section]:
    """Those that have something to show."""
    made = [Section("devices", "Both devices", (_devices(study),), Weight.LEAD)]
    if curves := _curves(study):
        made.append(Section("learning", "What both learn", tuple(curves), Weight.LEAD))
    if study.operators:
        blocks: list[Block] = [_operators(study)]
        if words := _waiting(study):
            blocks.append(Paragraph(words))
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
    columns = (
        Column(""), Column("device", priority=3), number_column("samples/s", digits=4),
        number_column("step", "ms"), Column("low", "ms", number=True, priority=2),
        Column("high", "ms", number=True, priority=2), number_column("epoch", "s"),
        Column("training", "s", number=True, priority=1),
        Column("memory", "MiB", number=True, digits=4, priority=1),
        number_column("loss", digits=4), number_column(_score_name(study), digits=4), Column("in"),
    )  # fmt: skip
    rows = tuple(
        (
            name, side.device_name, side.samples_per_s, side.mean_ms, side.mean_low_ms,
            side.mean_high_ms, side.epoch_s, side.train_s,
            None if side.peak_memory_bytes is None else side.peak_memory_bytes * _MIB,
            side.loss, side.score, side.arithmetic,
        )
        for side, name in _sides(study)
    )  # fmt: skip
    return Table("devices", columns, rows)


def _curves(study: CpuGpuStudy) -> list[Block]:
    """Both curves drawn, and a few points of each."""
    if study.curves is None:
        return []
    losses, scores = study.curves.losses, study.curves.scores
    made: list[Block] = []
    for name, title, points in (
        ("losses", "loss", losses),
        ("scores", _score_name(study), scores),
    ):
        if len(points) > 1:
            made.append(_curve(name, title, _spread(points, MAX_POINTS)))
    if losses:
        columns = (
            number_column("step"),
            *(number_column(f"{name} loss", digits=4) for name in ("CPU", "GPU")),
        )
        rows: tuple[tuple[Cell, ...], ...] = tuple(
            (one.step, one.cpu, one.gpu) for one in _spread(losses, _IN_TABLE)
        )
        made.append(Table("loss-points", columns, rows))
    if scores:
        named = _score_name(study)
        columns = (
            number_column("step"), number_column(f"CPU {named}", digits=4),
            number_column(f"GPU {named}", digits=4), number_column("CPU after", "s"),
            number_column("GPU after", "s"),
        )  # fmt: skip
        rows = tuple(
            (one.step, one.cpu, one.gpu, one.cpu_s, one.gpu_s) for one in _spread(scores, _IN_TABLE)
        )
        made.append(Table("score-points", columns, rows))
    return made


def _curve(name: str, title: str, points: Sequence[LossPoint | ScorePoint]) -> Chart:
    at = [point.step for point in points]
    series = (
        Series("CPU", at, [_or_nan(point.cpu) for point in points]),
        Series("GPU", at, [_or_nan(point.gpu) for point in points]),
    )
    return Chart(name, "line", f"{title} on both", series, Axis("step"), Axis(title))


def _spread(points: Sequence[T], most: int) -> list[T]:
    """Evenly spaced, the first and last among them."""
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
    return Chart(
        "operator-speedup", "bars", title, tuple(series), y=Axis("times as fast"), across=True
    )


def _operators(study: CpuGpuStudy) -> Table:
    columns = (
        Column("operators"), number_column("CPU", "ms"),
        Column("CPU share", number=True, percent=True, priority=1), number_column("GPU", "ms"),
        Column("GPU share", number=True, percent=True, priority=1),
        number_column("speedup", "×"), Column("possible", "×", number=True, priority=2),
    )  # fmt: skip
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            one.kind, one.cpu_ms, one.cpu_share, one.gpu_ms, one.gpu_share, one.speedup,
            one.possible,
        )
        for one in study.operators or ()
    )  # fmt: skip
    return Table("operators", columns, rows)


def _waiting(study: CpuGpuStudy) -> str:
    """How much of a step the GPU computes; "" where that is not known, or nearly all."""
    found = study.waiting
    if found is None or found.busy_ms > _BUSY * found.step_ms:
        return ""
    busy, step = format_number(found.busy_ms), format_number(found.step_ms)
    return f"GPU busy {busy} of {step} ms per step; it waits for the host the rest of the time."


def _or_nan(value: float | None) -> float:
    return nan if value is None else value


def _percent(share: float) -> str:
    return f"{share * 100:.3g}%"
