"""The heaviest operators and kernels of a step, against the device's ceilings."""

from collections.abc import Callable

from stepscope.bench.results import KernelsResult, KernelUse, OperatorUse
from stepscope.record.units import format_number
from stepscope.report.story.blocks import (
    Block,
    Chart,
    Column,
    Command,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
    Tone,
    Weight,
    scaled,
)
from stepscope.report.story.trace.kernels import at_most_all
from stepscope.trace.nsight.counter_join import kernel_base_name

_HEAVIEST = 12
_SHOWN_KERNELS = 6


def verdict(found: KernelsResult) -> str:
    """The heaviest operator, and how close it is to its ceiling."""
    if not found.operators:
        return "No operators were recorded."
    top = found.operators[0]
    words = f"{_short(top.name)}: {top.share:.0%} of {format_number(found.work_ms)} ms per step"
    if top.bound and top.ceiling_share is not None:
        words += f", {min(top.ceiling_share, 1.0):.0%} of the {top.bound} ceiling"
    return f"{words}."


def sections(found: KernelsResult) -> list[Section]:
    """Operators, then the kernels under them."""
    on_device, rows = found.on == "device", found.operators[:_HEAVIEST]
    figures = [f"{format_number(found.work_ms)} ms of {'GPU work' if on_device else 'operators'}"]
    figures += [f"{found.launched:,.0f} kernels"] if on_device else []
    if flops := found.step.model_flops:
        figures.append(f"{format_number(flops / 1e9)} GFLOP")
    figures.append(f"FLOPs known for {found.known_share:.0%}")
    blocks: list[Block] = [Facts((("per step", " · ".join(figures)),), brief=tuple(figures))]
    if found.operators:
        blocks.append(_operators(found))
        if (left := found.operators_in_all - len(found.operators)) > 0:
            blocks.append(Paragraph(f"… {left} more (--top N)", tone=Tone.QUIET))
    blocks += [Paragraph(text, tone=Tone.QUIET) for text in map(_counted, found.operators) if text]
    if found.ceilings is None:
        blocks.append(Missing("Ceilings unknown.", "stepscope doctor measures them."))
    made = [Section("operators", "Operators", tuple(blocks), Weight.LEAD)]
    if found.kernels:
        made.append(Section("kernels", "Kernels", (_kernels(found),), Weight.LEAD))
    if rows:
        names = [f"{one.name} {one.dtype or ''}".rstrip() for one in rows]
        series, title = Series("", names, [one.time_ms for one in rows]), "Heaviest operators"
        chart = Chart.bars("operator-time", title, series, unit="ms per step")
        made.append(Section("operator-chart", title, (chart,)))
    return made


def command(found: KernelsResult) -> Command:
    """The next command: measure the ceilings if they are unknown."""
    if found.ceilings is None or found.ceilings.source == "datasheet":
        return Command("stepscope doctor", "measure this machine's ceilings")
    return Command(f"stepscope bench {found.model} --mode {found.mode} --fix none --fix amp=bf16")


def _operators(found: KernelsResult) -> Table:
    def counted(key: str, by: float) -> Callable[[OperatorUse], float | None]:
        return lambda one: scaled(getattr(one.counted, key, None), by * _scale(one))

    return Table.of(
        "operators",
        "",
        found.operators,
        (Column("operator", clip=True), lambda one: _short(one.name)),
        (Column("type"), lambda one: one.dtype),
        (Column("category", priority=5), lambda one: one.category),
        (Column.numeric("calls", priority=4), lambda one: one.calls),
        (Column.numeric("time", "ms"), lambda one: one.time_ms),
        (Column.share("share"), lambda one: one.share),
        (Column.numeric("model", "GFLOP", priority=3), lambda one: scaled(one.flops, 1e-9)),
        (Column.numeric("model", "MB", priority=4), lambda one: scaled(one.bytes, 1e-6)),
        (Column.numeric("TFLOP/s", priority=1), lambda one: scaled(one.flops_per_s, 1e-12)),
        (Column.numeric("GB/s", priority=2), lambda one: scaled(one.bytes_per_s, 1e-9)),
        (Column("bound"), lambda one: one.bound),
        (Column.share("of ceiling"), lambda one: at_most_all(one.ceiling_share)),
        (Column.numeric("counted", "GFLOP", priority=6), counted("flops", 1e-9)),
        (Column.numeric("counted", "MB", priority=6), counted("bytes", 1e-6)),
    )


def _counted(one: OperatorUse) -> str:
    """How far the model is from the counters of the same calls."""
    counted, parts = one.counted, []
    if counted is None:
        return ""
    if counted.flops is not None and counted.flops_error is not None:
        gflop = counted.flops * _scale(one) / 1e9
        parts.append(f"{gflop:,.0f} GFLOP (model {counted.flops_error:+.1%})")
    if counted.bytes is not None and counted.bytes_ratio is not None:
        parts.append(f"{counted.bytes_ratio:.2f}× the least bytes")
    part = f" ({counted.time_share:.0%} of its time)" if counted.time_share < 0.995 else ""
    return f"{_short(one.name)} counted{part}: {', '.join(parts)}" if parts else ""


def _short(operator: str) -> str:
    return operator.removeprefix("aten::")


def _scale(one: OperatorUse) -> float:
    """Scales the counted calls to all calls of a step, by the model."""
    counted = one.counted
    if counted is None:
        return 1.0
    for mine, theirs in ((one.flops, counted.model_flops), (one.bytes, counted.model_bytes)):
        if mine and theirs:
            return mine / theirs
    return (one.calls or 0.0) / counted.calls


def _kernels(found: KernelsResult) -> Table:
    def counted(key: str) -> Callable[[KernelUse], float | None]:
        return lambda one: scaled(getattr(one.counted, key, None), 1e-12)

    name = Column("kernel", clip=True)
    return Table.of(
        "kernels",
        "",
        found.kernels,
        (name, lambda one: kernel_base_name(one.name) if one.operator else one.name),
        (Column("launched by", clip=True), lambda one: _short(one.operator or "") or None),
        (Column.numeric("time", "ms"), lambda one: one.time_ms),
        (Column.share("share"), lambda one: one.share),
        (Column.numeric("counted", "TFLOP/s", priority=1), counted("flops_per_s")),
        (Column.numeric("counted", "TB/s", priority=1), counted("bytes_per_s")),
        shown=_SHOWN_KERNELS,
    )
