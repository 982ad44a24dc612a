"""The story of a comparison: the verdict, what changed, kernel by kernel, and what else differs."""

from collections.abc import Iterator

from stepscope.record.units import format_bytes, format_number, format_signed, plural
from stepscope.report.story.blocks import (
    Block,
    Chart,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
    Tone,
    Weight,
)
from stepscope.report.story.phrases import IDLE_CAUSES, PHASE_NAMES, joined
from stepscope.report.text import keep_end
from stepscope.results.comparison import (
    AmountChange,
    Cause,
    Comparison,
    FloorSource,
    ItemVerdict,
    KernelComparison,
    LossComparison,
    LossState,
    NoteKind,
    Quantity,
    ResultKind,
    SettingDifference,
    SettingPart,
    SettingValue,
    SideNames,
    Unit,
    Verdict,
    WorkChange,
    WorkUnit,
)
from stepscope.stats.intervals import FEW_PROCESSES_FLOOR

_CHIEF = ("GPU", "driver", "processor", "torch", "Python")
_MOST = 10.0  # a share: larger changes show as "over 1,000%"
_ENOUGH_PROCESSES = 10
_MOST_CHANGES = 8
_MOST_POINTS = 12
_TONES: dict[Verdict, Tone] = {"FASTER": Tone.GOOD, "SLOWER": Tone.BAD, "UNCLEAR": Tone.WARN}
_LOSSES = {LossState.IDENTICAL: "losses identical", LossState.CLOSE: "losses match"}
_NOTES = {
    NoteKind.WHOLE_RECORDING: "No steps found in a recording: it counts as one step",
    NoteKind.PHASES_BY_DIFFERENT_CLOCKS: "Phases: host times in some runs, device times in others",
    NoteKind.GPU_SHARED: "Other processes used the GPU",
    NoteKind.HOST_BUSY: "Other processes kept the CPU busy",
}


def headline(comparison: Comparison) -> str:
    """`+6.2% per step (95% CI 5.1–7.4%)`; for several points, that it is the worst."""
    count = len(comparison.items)
    of = f", worst of {count}" if count > 1 else ""
    change, interval = percent(comparison.change), interval_percent(comparison)
    return f"{change} per {comparison.per} (95% CI {interval}){of}"


def side_name(side: SideNames) -> str:
    """`main`, or `main/1 and 4 more`."""
    first, *rest = side.names
    return f"{first} and {len(rest)} more" if rest else first


def percent(share: float) -> str:
    """`+6.2%`, `over +1,000%`."""
    sign = "−" if share < 0 else "+"
    return f"over {sign}{_MOST:,.0%}" if abs(share) > _MOST else f"{sign}{_unsigned(share)}"


def interval_percent(item: ItemVerdict | Comparison) -> str:
    """`5.1–7.4%`, without signs if both ends have the change's sign."""
    low, high = sorted((item.low, item.high), key=abs)
    if low * high > 0 and abs(high) <= _MOST:
        return f"{_unsigned(low).removesuffix('%')}–{_unsigned(high)}"
    return f"{percent(item.low)} to {percent(item.high)}"


def _unsigned(share: float) -> str:
    value = min(abs(share), _MOST)
    return f"{value:.1%}" if value < 1 else f"{value:,.0%}"


def exit_code_reason(comparison: Comparison) -> str:
    """`limit 5% → exit 1`: the exit code, and why."""
    code, limit = comparison.exit_code, comparison.max_regression
    if limit is None:
        return f"strict → exit {code}" if comparison.strict else "no limit → exit 0"
    return f"limit {limit * 100:.3g}% → exit {code}"


def cause_sentence(cause: Cause) -> str:
    """`forward +3.9 ms: 12 new kernels from aten::index in forward (model.py:88)`."""
    reasons = [setting_change(one) for one in cause.settings]
    if cause.work is not None:
        reasons.append(_work_change(cause.work))
    if cause.idle_cause is not None:
        reasons.append(_name(cause.idle_cause))
    head = f"{_name(cause.phase)} {format_signed(cause.delta_ms)} ms"
    return f"{head}: {'; '.join(reasons)}" if reasons else head


def _work_change(work: WorkChange) -> str:
    noun, made = ("kernel", "from") if work.unit is WorkUnit.KERNELS else ("call", "of")
    at = work.place
    place = f" in {at.function} ({at.file}:{at.line})" if at else ""
    if work.new and not work.gone:
        return f"{plural(work.new, f'new {noun}')} {made} {work.operator}{place}"
    if work.gone and not work.new:
        return f"{plural(work.gone, noun)} of {work.operator}{place} gone"
    if work.new:
        return f"{work.operator}: {plural(work.new, noun)} instead of {work.gone:,}{place}"
    way = "slower" if work.delta_ms > 0 else "faster"
    return f"{plural(work.count, noun)} of {work.operator}{place} {way}"


def amount_change(one: AmountChange) -> str | None:
    """What changed, and by how much; None if it hardly did."""
    base, other, name = one.base, one.other, one.name
    if abs(other - base) <= 0.01 * max(abs(base), abs(other)):
        return f"same {name}" if name is Quantity.PEAK_MEMORY else None
    if one.unit is Unit.BYTES:
        return f"{name} {'−' if other < base else '+'}{format_bytes(abs(other - base))}"
    if one.unit is Unit.SHARE:
        return f"{name} {base:.0%} → {other:.0%}"
    if one.unit is Unit.COUNT:
        return f"{name} {base:,.0f} → {other:,.0f}"
    return f"{name} {base:,.3g} → {other:,.3g} {one.unit}"


def losses_text(losses: LossComparison | None) -> str | None:
    """None if neither side computed losses."""
    if losses is None:
        return None
    if losses.state is not LossState.DIFFER:
        return _LOSSES[losses.state]
    told = f"losses differ from step {losses.step}"
    within = losses.control is LossState.DIFFER
    return f"{told}, as they do between runs of one side" if within else told


def setting_name(one: SettingDifference) -> str:
    """`loader num_workers`, `optimizer 2 lr`, `tf32_matmul`."""
    if one.part in (SettingPart.LOADER, SettingPart.OPTIMIZER, SettingPart.MODEL):
        number = f" {one.index + 1}" if one.index else ""
        return f"{one.owner or one.part}{number} {one.key}"
    return one.key


def setting_change(one: SettingDifference) -> str:
    """`loader num_workers 4 → 0`."""
    return f"{setting_name(one)} {_setting_text(one.base)} → {_setting_text(one.other)}"


def _setting_text(value: SettingValue) -> str:
    return "none" if value is None else str(value)


def notes(comparison: Comparison) -> Iterator[str]:
    """What the verdict rests on, and what makes it less certain, one sentence each."""
    item = comparison.decisive
    ours, theirs = item.base_processes, item.other_processes
    both = f"{plural(ours, 'process', 'processes')} per side"
    many = both if ours == theirs else f"{ours} and {theirs} processes"
    yield f"{many}, {item.base_steps:,} and {item.other_steps:,} steps; {_floor(item)}."
    if item.per == "sample":
        a, b = item.base_samples, item.other_samples
        yield f"{a:.4g} against {b:.4g} samples per step: times are per sample."
    kinds = sorted({comparison.base.kind, comparison.other.kind})
    if len(kinds) > 1:
        yield f"Different kinds of results: {' and '.join(kinds)}."
    if ResultKind.TRACE in kinds:
        yield "Times are of recorded steps, which recording slows down."
    for note in comparison.notes:
        throttled = note.kind is NoteKind.THROTTLED
        told = f"Throttled by {note.reason}" if throttled else _NOTES[note.kind]
        rest = f" and {len(note.names) - 2} more" if len(note.names) > 2 else ""
        yield f"{told}: {', '.join(note.names[:2])}{rest}." if note.names else f"{told}."
    if comparison.verdict == "UNCLEAR":
        few = min(ours, theirs)
        more = f"stepscope run --repeat {max(3, 2 * few)} … on each side"
        repeat = comparison.base.kind is ResultKind.RUN and few < _ENOUGH_PROCESSES
        yield f"To settle it: {more if repeat else 'more processes on each side'}"


def _floor(item: ItemVerdict) -> str:
    """`noise floor 2.0%, their own`."""

    def digits(share: float) -> str:
        return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"

    share, source = item.noise_floor, item.noise_floor_from
    if source is FloorSource.OWN:
        return f"noise floor {digits(share)}, measured on them"
    if source is FloorSource.ASSUMED:
        uneven = item.within_process_variation
        why = f": steps vary by {uneven:.0%} within a process" if uneven else ""
        return f"noise floor unknown, {digits(share)} assumed{why}"
    processes = plural(item.noise_floor_processes or 0, "process", "processes")
    floor = digits(max(share, FEW_PROCESSES_FLOOR))
    return f"noise floor {floor}, from {processes} on this machine"


def comparison_story(comparison: Comparison) -> Story:
    """A whole report of a comparison."""
    settings: list[Block] = []
    for name in ("configuration", "environment"):
        settings += Table.known(
            name,
            name.capitalize(),
            getattr(comparison, name),
            (Column("what"), setting_name),
            (Column("base"), lambda one: _setting_text(one.base)),
            (Column("other"), lambda one: _setting_text(one.other)),
        )
    if same := comparison.environment_same:
        settings.append(Facts((("the same on both sides", ", ".join(same)),)))
    sections = (
        Section("verdict", "Verdict", tuple(_lead(comparison)), Weight.LEAD),
        Section("speed", "Speed", (_speed_chart(comparison), *_items(comparison))),
        _step(comparison),
        _kernels(comparison.kernels),
        Section("settings", "What else differs", tuple(settings)),
    )
    return Story(
        title=f"{side_name(comparison.other)} against {side_name(comparison.base)}",
        verdict=f"{comparison.verdict}: {headline(comparison)}",
        subtitle=f"{comparison.other.kind} · {exit_code_reason(comparison)}",
        sections=tuple(part for part in sections if part.blocks),
        kind="comparison",
    )


def comparison_screen(comparison: Comparison) -> Story:
    """The screen: verdict and exit code in the first line, then the report's lead."""
    line = f"{comparison.verdict}  {headline(comparison)} · {exit_code_reason(comparison)}"
    verdict = Paragraph(line, strong=True, tone=_TONES.get(comparison.verdict, Tone.PLAIN))
    section = Section("verdict", "", (verdict, *_lead(comparison)), Weight.LEAD)
    return Story(sections=(section,), kind="comparison")


def _lead(comparison: Comparison) -> Iterator[Block]:
    items = comparison.items
    if len(items) == 1:
        one = items[0]
        told = f"{format_number(one.base_ms)} → {format_number(one.other_ms)} ms per step"
        if one.base_samples_per_s and one.other_samples_per_s:
            told += f", {one.base_samples_per_s:,.0f} → {one.other_samples_per_s:,.0f} samples/s"
        yield Paragraph(told)
    yield from (Paragraph(cause_sentence(cause)) for cause in comparison.why)
    same = ", ".join(name for name in _CHIEF if name in comparison.environment_same)
    amounts = map(amount_change, comparison.amounts)
    if facts := joined(*amounts, losses_text(comparison.losses), f"same {same}" if same else ""):
        yield Paragraph(facts)
    if changed := [*comparison.configuration, *comparison.environment]:
        shown = [keep_end(setting_change(one), 70) for one in changed[:_MOST_CHANGES]]
        rest = len(changed) - len(shown)
        yield Paragraph(f"Changed: {joined(*shown, f'{rest} more' if rest else '')}")
    if len(items) > 1:
        yield from _points(comparison)
    if alone := comparison.left_out:
        yield Paragraph(f"Only on one side: {', '.join(alone[:3])}{' …' if alone[3:] else ''}")
    yield from (Paragraph(note, tone=Tone.QUIET) for note in notes(comparison))


def _points(comparison: Comparison) -> list[Table]:
    """The points of a grid, slowest first."""
    items = sorted(comparison.items, key=lambda item: -item.change)
    return Table.known(
        "points",
        "",
        items,
        (Column("point", clip=True), lambda item: item.label),
        (Column.numeric("base", "ms"), lambda item: item.base_ms),
        (Column.numeric("other", "ms"), lambda item: item.other_ms),
        (Column("change"), lambda item: percent(item.change)),
        (Column("95% CI", priority=1), interval_percent),
        (Column("verdict"), lambda item: item.verdict),
        shown=_MOST_POINTS,
        tones=tuple(_TONES.get(item.verdict, Tone.PLAIN) for item in items),
    )


def _item_name(item: ItemVerdict) -> str:
    return item.label or f"per {item.per}"


def _speed_chart(comparison: Comparison) -> Chart:
    items = comparison.items
    change, low, high = (
        [100 * getattr(item, key) for item in items] for key in ("change", "low", "high")
    )
    series = Series("change", [_item_name(item) for item in items], change, low=low, high=high)
    return Chart.bars("change", "Change in time, with 95% interval", series, unit="%")


def _items(comparison: Comparison) -> list[Table]:
    processes = "{0.base_processes} and {0.other_processes}".format
    return Table.known(
        "items",
        "Speed",
        comparison.items,
        (Column("what"), _item_name),
        (Column.numeric("base", "ms"), lambda item: item.base_ms),
        (Column.numeric("other", "ms"), lambda item: item.other_ms),
        (Column.numeric("change", "%"), lambda item: item.change * 100),
        (Column.numeric("low", "%"), lambda item: item.low * 100),
        (Column.numeric("high", "%"), lambda item: item.high * 100),
        (Column("verdict"), lambda item: item.verdict),
        (Column("processes"), processes),
        (Column.numeric("noise floor", "%"), lambda item: item.noise_floor * 100),
    )


def _step(comparison: Comparison) -> Section:
    blocks: list[Block] = []
    if phases := comparison.phases:
        sides = ["base", "other"]
        series = (Series(_name(one.name), sides, [one.base_ms, one.other_ms]) for one in phases)
        blocks.append(Chart.stacked("phases-chart", "Where the time goes", series, "ms per step"))
    for name, first, rows, title in (
        ("phases", "phase", phases, "Phases"),
        ("idle", "cause", comparison.idle, "Why the device was idle"),
    ):
        blocks += Table.known(
            name,
            title,
            rows,
            (Column(first), lambda one: _name(one.name)),
            (Column.numeric("base", "ms"), lambda one: one.base_ms),
            (Column.numeric("other", "ms"), lambda one: one.other_ms),
            (Column.numeric("change", "ms"), lambda one: one.delta_ms),
            (Column.numeric("share before", "%"), lambda one: one.base_share * 100),
            (Column.numeric("share after", "%"), lambda one: one.other_share * 100),
        )
    units = {Unit.BYTES: (2.0**-20, "MiB"), Unit.SHARE: (100.0, "%")}
    blocks += Table.known(
        "amounts",
        "Memory, energy and GPU use",
        [(one, *units.get(one.unit, (1.0, str(one.unit)))) for one in comparison.amounts],
        (Column("what"), lambda row: row[0].name),
        (Column("unit"), lambda row: row[2]),
        (Column.numeric("base"), lambda row: row[0].base * row[1]),
        (Column.numeric("other"), lambda row: row[0].other * row[1]),
    )
    return Section("step", "Step", tuple(blocks))


def _kernels(kernels: KernelComparison | None) -> Section:
    if kernels is None:
        how = "Record a window on both sides: stepscope run without --no-window."
        missing = Missing("Kernels not compared: one side has no recorded window.", how)
        return Section("kernels", "Kernel by kernel", (missing,))
    whole = Paragraph(
        f"A typical recorded step has {kernels.base_count:,} → {kernels.other_count:,}"
        f" {kernels.unit} ({kernels.new:,} new, {kernels.gone:,} gone):"
        f" {kernels.base_ms:.4g} → {kernels.other_ms:.4g} ms. The changes below add up."
    )
    # Without a device the operators are the work itself and need no extra column.
    launched = kernels.unit is WorkUnit.KERNELS
    table = Table.known(
        "kernels",
        "",
        kernels.rows,
        (Column("kernel" if launched else "operator"), lambda row: row.name),
        (Column.numeric("difference", "ms"), lambda row: row.delta_ms),
        (Column("change"), lambda row: row.change),
        (Column.numeric("before", "ms"), lambda row: row.base_ms),
        (Column.numeric("after", "ms"), lambda row: row.other_ms),
        (Column.numeric("count before"), lambda row: row.base_count),
        (Column.numeric("count after"), lambda row: row.other_count),
        (Column("phase"), lambda row: _name(row.phase)),
        (Column("launched by"), lambda row: row.operator if launched else None),
        (Column("in"), lambda row: row.line),
    )
    return Section("kernels", "Kernel by kernel", (whole, *table))


def _name(key: str) -> str:
    return PHASE_NAMES.get(key) or IDLE_CAUSES.get(key) or key
