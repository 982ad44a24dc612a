"""What a run used: the data pipeline, Python on the host, memory and the machine."""

from operator import methodcaller
from typing import Any

import numpy as np

from stepscope.record.units import format_bytes, format_number, memory_unit
from stepscope.report.story.blocks import (
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
from stepscope.report.story.phrases import location_of, rerun_command, shown_program
from stepscope.report.story.series import over_time_chart, seconds_since_start
from stepscope.report.story.trace.recording import function_blocks, window_memory
from stepscope.results.load import RunTables

Document = dict[str, Any]
_PIPELINE_CHARTS = 3
_PARTS = 12


def pipeline_section(document: Document) -> Section:
    """Where datasets spent their time, and the loaders' settings."""
    sources, program = document["pipeline"], shown_program(document["run"])
    blocks: list[Block] = []
    if not sources and document["loaders"]:
        what = "No dataset was timed: no batch was fetched while the program was observed."
        blocks.append(Missing(what, command=rerun_command(document, "")))
    elif not sources:
        what, how = "No DataLoader: the program makes its own batches.", "Sample its Python code:"
        blocks.append(Missing(what, how, rerun_command(document, "--python")))
    for number, source in enumerate(sources, start=1):
        blocks.append(Paragraph(_source_sentence(source, program)))
        if number <= _PIPELINE_CHARTS:
            blocks.append(_source_chart(source, number))
    blocks += Table.known(
        "pipeline",
        "By transform and line",
        [(source["dataset"], part) for source in sources for part in source["parts"]],
        (Column("dataset"), lambda one: one[0]),
        (Column("part"), lambda one: one[1]["name"]),
        (Column("what"), lambda one: one[1]["what"]),
        (Column.share("share"), lambda one: one[1]["share"]),
        (Column.numeric("time", "ms per sample"), lambda one: one[1]["ms_per_sample"]),
        (Column("where"), lambda one: location_of(one[1], program)),
        empty_columns=True,
    )
    names = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "drop_last")
    blocks += Table.known(
        "loaders",
        "DataLoaders",
        document["loaders"],
        (Column("dataset"), lambda one: one.get("dataset")),
        (Column.numeric("samples", digits=9), lambda one: one.get("samples")),
        (Column.numeric("batch", digits=9), lambda one: one.get("batch_size")),
        (Column("shuffled"), lambda one: one.get("shuffle")),
        *((Column(name.replace("_", " ")), methodcaller("get", name)) for name in names),
        (Column("made at"), lambda one: location_of(one, program)),
        empty_columns=True,
    )
    return Section("data", "Data pipeline", tuple(blocks), Weight.DETAIL)


def _source_sentence(source: Document, program: str) -> str:
    where = location_of(source, program)
    at = f" ({where})" if where else ""
    each = source["ms_per_sample"]
    per = "" if each is None else f", {format_number(each)} ms a sample"
    busy = source["processor_share"]
    cores = "" if busy is None else f"; {busy:.0%} of that needs a core, the rest waits"
    batch = format_number(source["ms_per_batch"])
    makers = "one process" if source["processes"] == 1 else f"{source['processes']} processes"
    return f"{source['dataset']}{at}: {batch} ms a batch{per}, made in {makers}{cores}."


def _source_chart(source: Document, number: int) -> Chart:
    parts = source["parts"][:_PARTS]
    names, shares = [part["name"] for part in parts], [100 * part["share"] for part in parts]
    series = Series("", names, shares, text=[part["what"] for part in parts])
    left = len(source["parts"]) - len(parts)
    note = f"{left} smaller parts are in the table." if left else ""
    title = f"Making a sample of {source['dataset']}"
    return Chart.bars(f"pipeline-{number}", title, series, unit="% of its time", note=note)


def host_section(document: Document) -> Section:
    """Python functions in the recorded steps, and lines in the whole run."""
    stacks = document["timeline_stacks"] or {}
    lines, steps = stacks.get("host", {}).get("lines") or [], stacks.get("steps") or 1
    sampled = _other_code(document)
    blocks: list[Block] = [*function_blocks(lines, steps), *sampled]
    missing = Missing("Python code was not sampled.", command=rerun_command(document, "--python"))
    blocks += python_lines(document) or ([] if sampled else [missing])
    return Section("host", "Python on the host", tuple(blocks), Weight.DETAIL)


def _other_code(document: Document) -> list[Table]:
    """Sampled code that ran in no phase."""
    program, told = shown_program(document["run"]), document.get("other_time") or {}
    return Table.known(
        "other-code",
        f"Code in no phase, in {told.get('steps', 0)} sampled steps",
        told.get("code") or (),
        (Column("where"), lambda one: location_of(one, program)),
        (Column("function"), lambda one: one["function"] or "the loop itself"),
        (Column.share("share"), lambda one: one["share"]),
        (Column("mostly in"), lambda one: one["calls"]),
    )


def python_lines(document: Document) -> list[Table]:
    """Lines by sampled time."""
    program = shown_program(document["run"])
    return Table.known(
        "python",
        "Lines by sampled time",
        (document["host_code"] or {}).get("lines") or (),
        (Column("where"), lambda line: location_of(line, program)),
        (Column("function"), lambda line: line["function"]),
        (Column.numeric("own", "s"), lambda line: line["own_s"]),
        (Column.numeric("total", "s"), lambda line: line["cumulative_s"]),
        empty_columns=True,
    )


def memory_section(document: Document, tables: RunTables | None) -> Section:
    """Sampled and recorded memory, and what is missing."""
    memory, analysed = document["memory"], document["timeline"]
    on_device = memory["device"] == "cuda"
    blocks: list[Block] = []
    if memory["peak_bytes"]:
        whose = "the GPU's" if on_device else "the host's"
        blocks.append(Paragraph(f"Peak {format_bytes(memory['peak_bytes'])} of {whose} memory."))
    blocks += _sampled(document, tables)
    known = {name: value for name, value in memory["owners"].items() if value}
    if known:
        unit, name = memory_unit(known.values())
        names = sorted(known, key=lambda key: -known[key])
        amounts = [known[key] / unit for key in names]
        series = Series("", [key.replace("_", " ") for key in names], amounts)
        title = "Who owns the peak" if on_device else "What the model keeps"
        blocks.append(Chart.bars("memory-owners", title, series, unit=name))
    blocks += window_memory(analysed) if analysed is not None else []
    blocks += memory_lines(document)
    if not memory["lines"]:
        what = "Memory was not traced to lines."
        blocks.append(Missing(what, command=rerun_command(document, "--memory")))
    return Section("memory", "Memory", tuple(blocks), Weight.DETAIL)


def _sampled(document: Document, tables: RunTables | None) -> list[Block]:
    columns = {"rss_bytes": "host (RSS)", "gpu_memory_bytes": "GPU, as the driver sees it"}
    samples = tables.samples if tables is not None else None
    if samples is None or not samples.size:
        what = "No memory samples: the program ended too soon."
        return [Missing(what, command=rerun_command(document, ""))]
    unit, name = memory_unit(float(np.fmax.reduce(samples[c], initial=0.0)) for c in columns)
    seconds, title = seconds_since_start(document, samples), "Memory over the run"
    chart = over_time_chart("memory-time", title, samples, seconds, columns, name, 1 / unit)
    return [chart] if chart is not None else []


def memory_lines(document: Document) -> list[Table]:
    """Lines that own the peak, and lines whose memory grew."""
    program, lines = shown_program(document["run"]), document["memory"]["lines"] or {}
    titles = {"at_peak": "Lines that own the peak", "growth": "Lines whose memory grew"}
    return [
        table
        for key, title in titles.items()
        for table in Table.known(
            f"memory-{key.replace('_', '-')}",
            title,
            lines.get(key, ()),
            (Column("where"), lambda one: location_of(one, program)),
            (Column("function"), lambda one: one["function"]),
            (Column.numeric("memory", "MiB"), lambda one: one["bytes"] / 2**20),
            empty_columns=True,
        )
    ]


_CHARTS = (
    ("gpu-use", "GPU utilisation", "gpu_percent", "%"),
    ("gpu-power", "GPU power", "gpu_power_w", "W"),
    ("gpu-clock", "GPU clock", "gpu_sm_mhz", "MHz"),
    ("gpu-temperature", "GPU temperature", "gpu_temperature_c", "°C"),
    ("cpu-use", "CPU of the program and its workers", "cpu_percent", "% of one core"),
)


def machine_section(document: Document, tables: RunTables | None) -> Section:
    """The machine's samples, about ten per second."""
    samples = tables.samples if tables is not None else None
    if samples is None or not samples.size:
        what = "No samples: the program ended too soon."
        missing = Missing(what, command=rerun_command(document, ""))
        return Section("machine", "The machine", (missing,), Weight.DETAIL)
    blocks: list[Block] = []
    seconds = seconds_since_start(document, samples)
    for name, title, column, unit in _CHARTS:
        chart = over_time_chart(name, title, samples, seconds, {column: title}, unit)
        blocks += [chart] if chart is not None else []
    if document["gpu"] is None:
        what = "No GPU was used."
        blocks.append(Missing(what, "stepscope doctor shows what this machine has."))
    blocks.append(_machine_facts(document))
    return Section("machine", "The machine", tuple(blocks), Weight.DETAIL)


def _machine_facts(document: Document) -> Facts:
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
    return Facts(tuple(pairs))
