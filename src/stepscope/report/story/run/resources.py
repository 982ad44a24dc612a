"""What a run used: the data pipeline, Python on the host, memory and the machine."""

from typing import Any

import numpy as np

from stepscope.record.units import format_bytes, format_number, memory_unit
from stepscope.report.story.blocks import (
    Axis,
    Block,
    Chart,
    Column,
    Facts,
    Missing,
    Paragraph,
    Section,
    Series,
    Table,
    Weight,
)
from stepscope.report.story.phrases import display_location, rerun_command
from stepscope.report.story.series import over_time_chart, seconds_since_start
from stepscope.report.story.trace.recording import function_blocks, window_memory
from stepscope.results.load import RunTables

Document = dict[str, Any]
_PIPELINE_CHARTS = 3
_PARTS = 12


def pipeline_section(document: Document) -> Section:
    """What datasets spent, and how the loaders were made."""
    sources, program = document["pipeline"], document["run"]["program"]
    blocks: list[Block] = []
    if not sources:
        blocks.append(_missing(document))
    for number, source in enumerate(sources):
        where = display_location(source["file"], source["line"], program)
        blocks.append(Paragraph(_source_sentence(source, where)))
        if number < _PIPELINE_CHARTS:
            blocks.append(_chart(source, number))
    if sources:
        blocks.append(_parts(sources, program))
    blocks += _loaders(document["loaders"], program)
    return Section("data", "Data pipeline", tuple(blocks), Weight.DETAIL)


def _missing(document: Document) -> Missing:
    if document["loaders"]:
        return Missing(
            "No dataset was timed: no batch was fetched while the program was observed.",
            command=rerun_command(document, ""),
        )
    return Missing(
        "No DataLoader: the program makes its own batches.",
        "Sample its Python code:",
        rerun_command(document, "--python"),
    )


def _source_sentence(source: Document, where: str) -> str:
    at = f" ({where})" if where else ""
    each = source["ms_per_sample"]
    per = "" if each is None else f", {format_number(each)} ms a sample"
    busy = source["processor_share"]
    cores = "" if busy is None else f"; a core works {busy:.0%} of that time and waits for the rest"
    batch = format_number(source["ms_per_batch"])
    makers = "one process" if source["processes"] == 1 else f"{source['processes']} processes"
    return f"{source['dataset']}{at}: {batch} ms a batch{per}, made in {makers}{cores}."


def _chart(source: Document, number: int) -> Chart:
    parts = source["parts"][:_PARTS]
    left = len(source["parts"]) - len(parts)
    series = Series(
        "",
        [part["name"] for part in parts],
        [100 * part["share"] for part in parts],
        text=[part["what"] for part in parts],
    )
    return Chart(
        f"pipeline-{number + 1}",
        "bars",
        f"Making a sample of {source['dataset']}",
        (series,),
        y=Axis("% of its time"),
        across=True,
        note=f"{left} smaller parts are in the table." if left else "",
    )


def _parts(sources: list[Document], program: str) -> Table:
    columns = (
        Column("dataset"),
        Column("part"),
        Column("what"),
        Column("share", number=True, percent=True),
        Column("time", "ms per sample", number=True),
        Column("where"),
    )
    rows = tuple(
        (
            source["dataset"],
            part["name"],
            part["what"],
            part["share"],
            part["ms_per_sample"],
            display_location(part["file"], part["line"], program),
        )
        for source in sources
        for part in source["parts"]
    )
    return Table("pipeline", columns, rows, "By transform and line")


def _loaders(loaders: list[Document], program: str) -> list[Block]:
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
    columns = (
        Column("dataset"),
        Column("samples", number=True, digits=9),
        Column("batch", number=True, digits=9),
        Column("shuffled"),
        *(Column(name.replace("_", " ")) for name in names),
        Column("made at"),
    )
    rows = tuple(
        (
            one.get("dataset"),
            one.get("samples"),
            one.get("batch_size"),
            one.get("shuffle"),
            *(one.get(name) for name in names),
            display_location(one.get("file"), one.get("line"), program),
        )
        for one in loaders
    )
    return [Table("loaders", columns, rows, "DataLoaders")] if rows else []


def host_sections(document: Document) -> list[Section]:
    """Functions of the recorded steps, lines of the whole run."""
    stacks = document["timeline_stacks"] or {}
    blocks = function_blocks(stacks.get("host", {}).get("lines") or [], stacks.get("steps") or 1)
    code = document["host_code"]
    if code and code["lines"]:
        blocks.append(python_lines(code, document["run"]["program"]))
    else:
        what = "Python code was not sampled."
        blocks.append(Missing(what, command=rerun_command(document, "--python")))
    return [Section("host", "Python on the host", tuple(blocks), Weight.DETAIL)]


def python_lines(code: Document, program: str) -> Table:
    """Lines by the time they were sampled in."""
    columns = (
        Column("where"),
        Column("function"),
        Column("own", "s", number=True),
        Column("total", "s", number=True),
    )
    rows = tuple(
        (
            display_location(line["file"], line["line"], program),
            line["function"],
            line["own_s"],
            line["cumulative_s"],
        )
        for line in code["lines"]
    )
    return Table("python", columns, rows, "Lines by sampled time")


def memory_section(document: Document, tables: RunTables | None) -> Section:
    """What was sampled, what was recorded, and what is missing of both."""
    memory = document["memory"]
    whose = "the GPU's" if memory["device"] == "cuda" else "the host's"
    blocks: list[Block] = []
    if memory["peak_bytes"]:
        blocks.append(Paragraph(f"Peak {format_bytes(memory['peak_bytes'])} of {whose} memory."))
    blocks += _sampled(document, tables)
    blocks += _owners(memory)
    analysed = document["timeline"]
    blocks += window_memory(analysed) if analysed is not None else []
    lines = memory["lines"]
    blocks += memory_lines(lines, document["run"]["program"]) if lines else []
    if not lines:
        what = "Memory was not traced to lines."
        blocks.append(Missing(what, command=rerun_command(document, "--memory")))
    return Section("memory", "Memory", tuple(blocks), Weight.DETAIL)


def _sampled(document: Document, tables: RunTables | None) -> list[Block]:
    columns = {"rss_bytes": "host (RSS)", "gpu_memory_bytes": "GPU, as the driver sees it"}
    samples = tables.samples if tables is not None else None
    if samples is None or not samples.size:
        return [
            Missing(
                "No memory samples: the program ended too soon.",
                command=rerun_command(document, ""),
            )
        ]
    unit, name = memory_unit(float(np.fmax.reduce(samples[c], initial=0.0)) for c in columns)
    seconds = seconds_since_start(document, samples)
    chart = over_time_chart(
        "memory-time", "Memory over the run", samples, seconds, columns, name, 1 / unit
    )
    return [chart] if chart is not None else []


def _owners(memory: Document) -> list[Block]:
    known = {name: value for name, value in memory["owners"].items() if value}
    if not known:
        return []
    unit, name = memory_unit(known.values())
    ordered = sorted(known.items(), key=lambda item: -item[1])
    series = Series(
        "", [key.replace("_", " ") for key, _ in ordered], [value / unit for _, value in ordered]
    )
    title = "Who owns the peak" if memory["device"] == "cuda" else "What the model keeps"
    return [Chart("memory-owners", "bars", title, (series,), y=Axis(name), across=True)]


def memory_lines(lines: Document, program: str) -> list[Table]:
    """Lines that own the peak, and whose memory grew."""
    columns = (Column("where"), Column("function"), Column("memory", "MiB", number=True))
    tables: list[Table] = []
    titles = {"at_peak": "Lines that own the peak", "growth": "Lines whose memory grew"}
    for key, title in titles.items():
        rows = tuple(
            (
                display_location(one["file"], one["line"], program),
                one["function"],
                one["bytes"] / 2**20,
            )
            for one in lines[key]
        )
        if rows:
            tables.append(Table(f"memory-{key.replace('_', '-')}", columns, rows, title))
    return tables


_CHARTS = (
    ("gpu-use", "GPU utilisation", "gpu_percent", "%"),
    ("gpu-power", "GPU power", "gpu_power_w", "W"),
    ("gpu-clock", "GPU clock", "gpu_sm_mhz", "MHz"),
    ("gpu-temperature", "GPU temperature", "gpu_temperature_c", "°C"),
    ("cpu-use", "CPU of the program and its workers", "cpu_percent", "% of one core"),
)


def machine_section(document: Document, tables: RunTables | None) -> Section:
    """What was sampled about ten times a second."""
    samples = tables.samples if tables is not None else None
    blocks: list[Block] = []
    if samples is None or not samples.size:
        what = "No samples: the program ended too soon."
        return Section(
            "machine",
            "The machine",
            (Missing(what, command=rerun_command(document, "")),),
            Weight.DETAIL,
        )
    seconds = seconds_since_start(document, samples)
    for name, title, column, unit in _CHARTS:
        chart = over_time_chart(name, title, samples, seconds, {column: title}, unit)
        blocks += [chart] if chart is not None else []
    if document["gpu"] is None:
        what = "No GPU was used."
        blocks.append(Missing(what, "stepscope doctor shows what this machine has."))
    blocks.append(Facts(tuple(_facts(document))))
    return Section("machine", "The machine", tuple(blocks), Weight.DETAIL)


def _facts(document: Document) -> list[tuple[str, str]]:
    gpu, host = document["gpu"] or {}, document["host"] or {}
    shown = (
        ("mean GPU utilisation (NVML)", gpu.get("utilization_percent"), "{:.0f}%"),
        ("mean GPU power", gpu.get("power_w"), "{:,.0f} W"),
        ("mean GPU clock", gpu.get("sm_mhz"), "{:,.0f} MHz"),
        ("highest GPU temperature", gpu.get("temperature_c"), "{:.0f} °C"),
        ("GPU energy of the run", gpu.get("energy_j"), "{:,.0f} J"),
        ("mean CPU use", host.get("cpu_percent"), "{:,.0f}% of one core"),
        ("most processes", host.get("processes"), "{:.0f}"),
    )
    pairs = [(name, form.format(value)) for name, value, form in shown if value is not None]
    sizes = (("read", "read_bytes"), ("written", "write_bytes"))
    pairs += [(name, format_bytes(host[key])) for name, key in sizes if host.get(key) is not None]
    if gpu.get("throttled_by"):
        pairs.append(("GPU throttled by", ", ".join(gpu["throttled_by"])))
    return pairs
