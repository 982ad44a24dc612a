"""The story of a benchmark: a grid of points, a study, a loader grid or a table of kernels."""

from math import nan
from typing import Any

from stepscope.report.render.terminal.bench import device_names, impossible_mfu
from stepscope.report.render.terminal.bench_answer import noise_floor_sentence
from stepscope.report.story.bench.grid import grid_sections, grid_verdict
from stepscope.report.story.bench.studies import study_sections, study_title, study_verdict
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Story,
    Table,
    number_column,
    share_column,
)
from stepscope.report.story.summary import machine_facts
from stepscope.report.text import format_bytes, format_number, plural
from stepscope.results.load import LoadedResult

Document = dict[str, Any]
_HEAVIEST = 12


def _kernels_verdict(found: Document) -> str:
    """The heaviest, and how near it is to what it could do."""
    if not found["operators"]:
        return "No operators were recorded."
    top = found["operators"][0]
    words = f"{top['name']} takes {top['share']:.0%} of {format_number(found['work_ms'])} ms a step"
    if top["bound"] and top["ceiling_share"] is not None:
        words += f", {min(top['ceiling_share'], 1.0):.0%} of the {top['bound']} ceiling"
    return f"{words}."


def _kernels_sections(found: Document) -> list[Section]:
    """Operators, then the kernels under them."""
    blocks: list[Block] = [_operator_chart(found), _operators(found)] if found["operators"] else []
    if found["ceilings"] is None:
        blocks.append(Missing("Ceilings are not known here.", "stepscope doctor measures them."))
    made = [Section("operators", "Operators", tuple(blocks))]
    if found["kernels"]:
        made.append(Section("kernels", "Kernels", (_kernels(found),)))
    return made


def _operator_chart(found: Document) -> Chart:
    rows = found["operators"][:_HEAVIEST]
    names = [f"{one['name']}{' ' + one['dtype'] if one['dtype'] else ''}" for one in rows]
    series = Series("", names, [one["time_ms"] for one in rows])
    return Chart(
        "operator-time", "bars", "The heaviest operators", (series,), y=Axis("ms a step"),
        across=True,
    )  # fmt: skip


def _operators(found: Document) -> Table:
    columns = (
        Column("operator"), Column("type"), Column("category"), number_column("calls"),
        number_column("time", "ms"), share_column("share"),
        number_column("model", "GFLOP"), number_column("model", "MB"),
        number_column("reached", "TFLOP/s"), number_column("reached", "GB/s"),
        Column("bound"), share_column("of ceiling"),
        number_column("counted", "GFLOP"), number_column("counted", "MB"),
    )  # fmt: skip
    rows = tuple(_operator(one) for one in found["operators"])
    return Table("operators", columns, rows)


def _operator(one: Document) -> tuple[Cell, ...]:
    counted = one["counted"] or {}
    return (
        one["name"], one["dtype"], one["category"], one["calls"], one["time_ms"], one["share"],
        _in(one["flops"], 1e9), _in(one["bytes"], 1e6), _in(one["flops_per_s"], 1e12),
        _in(one["bytes_per_s"], 1e9), one["bound"], one["ceiling_share"],
        _in(counted.get("flops"), 1e9), _in(counted.get("bytes"), 1e6),
    )  # fmt: skip


def _kernels(found: Document) -> Table:
    columns = (
        Column("kernel"), Column("operator"), number_column("time", "ms"),
        share_column("share"), number_column("counted", "TFLOP/s"),
        number_column("counted", "TB/s"),
    )  # fmt: skip
    rows = tuple(
        (
            one["name"], one["operator"], one["time_ms"], one["share"],
            _in((one["counted"] or {}).get("flops_per_s"), 1e12),
            _in((one["counted"] or {}).get("bytes_per_s"), 1e12),
        )
        for one in found["kernels"]
    )  # fmt: skip
    return Table("kernels", columns, rows)


def _in(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _loader_verdict(loader: Document) -> str:
    """The setting to use, and what it is worth."""
    chosen, gain = loader["simplest"], loader["speedup"]
    if chosen is None:
        return "Nothing was measured."
    more = f", {gain['ratio']:.2f}× the default loader" if gain else ""
    rate = format_number(chosen["samples_per_s"])
    return f"Use {_setting(chosen)}: {rate} samples a second{more}."


def _loader_sections(loader: Document, points: list[Document]) -> list[Section]:
    """What to write, throughput by workers, and the whole grid."""
    summary: list[Block] = [Facts(_dataset(loader))]
    if loader["line"]:
        summary += [Paragraph("Write it so:"), Code(loader["line"], "python")]
    else:
        summary.append(Missing("No setting could be measured.", "The table below says why."))
    grid = Section("grid", "Every setting", (_workers_chart(points), _settings_table(points)))
    return [Section("summary", "At a glance", tuple(summary)), grid]


def _setting(point: Document) -> str:
    parts = [f"batch {point['batch']:,}", plural(point["workers"], "worker")]
    parts += ["pinned memory"] if point["pin"] else []
    parts += [f"prefetch {point['prefetch']}"] if point["prefetch"] not in (None, 2) else []
    return ", ".join(parts)


def _dataset(loader: Document) -> tuple[tuple[str, str], ...]:
    found, pairs = loader.get("dataset") or {}, []
    if found.get("kind"):
        pairs.append(("data set", str(found["kind"])))
    if found.get("samples") is not None:
        pairs.append(("samples", f"{found['samples']:,}"))
    if found.get("sample_bytes"):
        pairs.append(("size of a sample", format_bytes(found["sample_bytes"])))
    pairs.append(("usable cores", str(loader["usable_cores"])))
    for name in ("best", "simplest", "default"):
        if loader[name]:
            rate = format_number(loader[name]["samples_per_s"])
            pairs.append((name, f"{_setting(loader[name])}: {rate} samples/s"))
    return tuple(pairs)


def _workers_chart(points: list[Document]) -> Chart:
    """The best of pinning and prefetching at each number of workers, a line per batch."""
    series = []
    for batch in dict.fromkeys(point["batch"] for point in points):
        rates: dict[int, float] = {}
        for point in points:
            rate = point["samples_per_s"]
            if point["batch"] == batch and rate is not None:
                rates[point["workers"]] = max(rate, rates.get(point["workers"], 0.0))
        at = sorted(rates)
        series.append(Series(f"batch {batch:,}", at, [rates.get(count, nan) for count in at]))
    note = "The best of pinning and prefetching at each."
    return Chart(
        "loader", "line", "Samples a second by number of workers", tuple(series),
        Axis("workers"), Axis("samples/s"), note=note,
    )  # fmt: skip


def _settings_table(points: list[Document]) -> Table:
    columns = (
        Column("batch", number=True), Column("workers", number=True), Column("pinned"),
        Column("prefetch", number=True), Column("samples/s", number=True, digits=4),
        Column("first batch", "ms", number=True), Column("memory", "MiB", number=True, digits=4),
        Column("cores busy", number=True), Column("outcome"),
    )  # fmt: skip
    rows = tuple(
        (
            point["batch"], point["workers"], point["pin"], point["prefetch"],
            point["samples_per_s"], point["first_batch_ms"], _mib(point["peak_memory_bytes"]),
            point["cores"], _outcome(point),
        )
        for point in points
    )  # fmt: skip
    return Table("settings", columns, rows, shown=60)


def _mib(value: float | None) -> float | None:
    return None if value is None else value * 2.0**-20


def _outcome(point: Document) -> str:
    state = str(point["status"]).replace("_", " ")
    return f"{state}: {point['why']}" if point["why"] else state


def story_of_bench(subject: LoadedResult) -> Story:
    """Whatever was measured, with the same frame around it."""
    document = subject.document
    title, verdict, sections = _of(document)
    return Story(
        title=title,
        verdict=verdict,
        subtitle=_subtitle(document),
        sections=(*sections, *_notes(document), _environment(document)),
        kind="bench",
    )


def _of(document: Document) -> tuple[str, str, list[Section]]:
    if study := document.get("study"):
        return study_title(study), study_verdict(study), study_sections(study)
    if found := document.get("kernels"):
        title = f"kernels of {found['model']}, {found['mode']}, batch {found['batch']:,}"
        return title, _kernels_verdict(found), _kernels_sections(found)
    if loader := document.get("loader"):
        points = document["points"]
        name = points[0]["model"] if points else "a loader"
        return f"loading {name}", _loader_verdict(loader), _loader_sections(loader, points)
    if not document["points"]:
        missing = Missing("No point was measured.", "stepscope bench resnet18 measures one.")
        return "benchmark", "Nothing was measured.", [Section("points", "Points", (missing,))]
    return _title(document), grid_verdict(document), grid_sections(document)


def _title(document: Document) -> str:
    models = list(dict.fromkeys(point["model"] for point in document["points"]))
    more = f" and {len(models) - 3} more" if len(models) > 3 else ""
    return f"bench of {', '.join(models[:3])}{more}"


def _subtitle(document: Document) -> str:
    machine = document.get("machine") or {}
    torch = (machine.get("torch") or {}).get("version")
    parts = [
        *(device_names(document) or _device(document)),
        f"torch {str(torch).partition('+')[0]}" if torch else None,
        str(document.get("started") or "")[:16].replace("T", " ") or None,
    ]
    return " · ".join(str(part) for part in parts if part)


def _device(document: Document) -> list[str]:
    """Of a study or of kernels, which have no points."""
    machine, kernels = document.get("machine") or {}, document.get("kernels")
    gpus = [gpu.get("name") for gpu in machine.get("gpus") or []]
    on_cpu = kernels is not None and kernels["device"] == "cpu"
    cpu = (machine.get("cpu") or {}).get("model")
    name = cpu if on_cpu or not gpus else gpus[0]
    return [str(name)] if name else []


def _notes(document: Document) -> list[Section]:
    notes = [_capital(str(note)) for note in document.get("notes") or ()]
    for point in document.get("points") or ():
        named = f"{point['model']} {point['mode']}, batch {point['batch']:,}"
        named += f", {point['variant']}" if point.get("variant") else ""
        if point.get("unstable"):
            why = point.get("unstable_why") or "its times did not settle"
            notes.append(f"{named} is unstable: {why}")
        notes += [f"{named}: {note}" for note in point.get("notes") or ()]
        for one in point.get("not_applied") or ():
            notes.append(f"{named}: without {one['name']}: {one['why']}")
    floor = document.get("noise_floor")
    if floor is not None:
        notes.append(_capital(noise_floor_sentence(floor)))
    if words := impossible_mfu(document.get("points") or []):
        notes.append(_capital(words))
    blocks = [Paragraph(f"{note}.") for note in dict.fromkeys(notes)]
    return [Section("quality", "How far to trust this", tuple(blocks))] if blocks else []


def _capital(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}"


def _environment(document: Document) -> Section:
    blocks: list[Block] = []
    if command := document.get("command"):
        shown = command if isinstance(command, str) else " ".join(map(str, command))
        blocks.append(Code(shown, "sh"))
    versions = document.get("versions") or {}
    pairs = [(name, str(value)) for name, value in versions.items() if value is not None]
    pairs += [("started", str(document["started"]))] if document.get("started") else []
    pairs += machine_facts(document.get("machine") or {})
    blocks.append(Facts(tuple(pairs)))
    return Section("environment", "Environment", tuple(blocks))
