"""The heaviest operators and kernels of a step, against the device's ceilings."""

from stepscope.bench.results import KernelsResult, KernelUse, OperatorUse
from stepscope.record.units import format_number
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
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
    number_column,
)
from stepscope.trace.nsight.counter_join import kernel_base_name

_HEAVIEST = 12
_SHOWN_KERNELS = 6


def kernels_verdict(found: KernelsResult) -> str:
    """The heaviest operator, and how near it is to its ceiling."""
    if not found.operators:
        return "No operators were recorded."
    top = found.operators[0]
    words = f"{_short(top.name)}: {top.share:.0%} of {format_number(found.work_ms)} ms per step"
    if top.bound and top.ceiling_share is not None:
        words += f", {min(top.ceiling_share, 1.0):.0%} of the {top.bound} ceiling"
    return f"{words}."


def kernels_sections(found: KernelsResult) -> list[Section]:
    """Operators, then the kernels under them."""
    figures = _figures(found)
    blocks: list[Block] = [Facts((("per step", " · ".join(figures)),), brief=figures)]
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
    if found.operators:
        made.append(Section("operator-chart", "Heaviest operators", (_operator_chart(found),)))
    return made


def kernels_command(found: KernelsResult) -> Command:
    """Ceilings first where they are not measured."""
    if found.ceilings is None or found.ceilings.source == "datasheet":
        return Command("stepscope doctor", "measure this machine's ceilings")
    return Command(f"stepscope bench {found.model} --mode {found.mode} --fix none --fix amp=bf16")


def _figures(found: KernelsResult) -> tuple[str, ...]:
    on_device = found.on == "device"
    parts = [f"{format_number(found.work_ms)} ms of {'GPU work' if on_device else 'operators'}"]
    parts += [f"{found.launched:,.0f} kernels"] if on_device else []
    if flops := found.step.model_flops:
        parts.append(f"{format_number(flops / 1e9)} GFLOP")
    return (*parts, f"FLOPs known for {found.known_share:.0%}")


def _operator_chart(found: KernelsResult) -> Chart:
    rows = found.operators[:_HEAVIEST]
    names = [f"{one.name} {one.dtype or ''}".rstrip() for one in rows]
    series = Series("", names, [one.time_ms for one in rows])
    return Chart(
        "operator-time", "bars", "Heaviest operators", (series,), y=Axis("ms per step"),
        across=True,
    )  # fmt: skip


def _operators(found: KernelsResult) -> Table:
    columns = (
        Column("operator", clip=True), Column("type"), Column("category", priority=5),
        _number("calls", "", 4), number_column("time", "ms"),
        Column("share", number=True, percent=True), _number("model", "GFLOP", 3),
        _number("model", "MB", 4), _number("TFLOP/s", "", 1),
        _number("GB/s", "", 2), Column("bound"),
        Column("of ceiling", number=True, percent=True),
        _number("counted", "GFLOP", 6), _number("counted", "MB", 6),
    )  # fmt: skip
    return Table("operators", columns, tuple(map(_operator, found.operators)))


def _number(name: str, unit: str, priority: int) -> Column:
    return Column(name, unit, number=True, priority=priority)


def _operator(one: OperatorUse) -> tuple[Cell, ...]:
    counted, scale = one.counted, _scale(one)
    return (
        _short(one.name), one.dtype, one.category, one.calls, one.time_ms, one.share,
        _in(one.flops, 1e9), _in(one.bytes, 1e6), _in(one.flops_per_s, 1e12),
        _in(one.bytes_per_s, 1e9), one.bound,
        None if one.ceiling_share is None else min(one.ceiling_share, 1.0),
        _in(counted.flops if counted else None, 1e9 / scale),
        _in(counted.bytes if counted else None, 1e6 / scale),
    )  # fmt: skip


def _counted(one: OperatorUse) -> str:
    """How far the model is from what the counters say of the same calls."""
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
    """From the calls that were counted to a step of all of them, going by the model."""
    counted = one.counted
    if counted is None:
        return 1.0
    for mine, theirs in ((one.flops, counted.model_flops), (one.bytes, counted.model_bytes)):
        if mine and theirs:
            return mine / theirs
    return (one.calls or 0.0) / counted.calls


def _kernels(found: KernelsResult) -> Table:
    columns = (
        Column("kernel", clip=True), Column("launched by", clip=True), number_column("time", "ms"),
        Column("share", number=True, percent=True), _number("counted", "TFLOP/s", 1),
        _number("counted", "TB/s", 1),
    )  # fmt: skip
    return Table("kernels", columns, tuple(map(_kernel, found.kernels)), shown=_SHOWN_KERNELS)


def _kernel(one: KernelUse) -> tuple[Cell, ...]:
    counted = one.counted
    name = kernel_base_name(one.name) if one.operator else one.name
    return (
        name, _short(one.operator or "") or None, one.time_ms, one.share,
        _in(counted.flops_per_s if counted else None, 1e12),
        _in(counted.bytes_per_s if counted else None, 1e12),
    )  # fmt: skip


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit
