"""The machine during a run: use, power and clocks of the GPU, use of the CPU."""

from typing import Any

from stepscope.report.story.blocks import Block, Facts, Missing, Section
from stepscope.report.story.overtime import clock, over_time
from stepscope.report.story.places import run_again
from stepscope.report.subject import Tables
from stepscope.report.text import size

Document = dict[str, Any]
_CHARTS = (
    ("gpu-use", "GPU utilisation", "gpu_percent", "%"),
    ("gpu-power", "GPU power", "gpu_power_w", "W"),
    ("gpu-clock", "GPU clock", "gpu_sm_mhz", "MHz"),
    ("gpu-temperature", "GPU temperature", "gpu_temperature_c", "°C"),
    ("cpu-use", "CPU of the program and its workers", "cpu_percent", "% of one core"),
)


def machine_section(document: Document, tables: Tables | None) -> Section:
    """What was sampled about ten times a second."""
    samples = tables.samples if tables is not None else None
    blocks: list[Block] = []
    if samples is None or not samples.size:
        what = "The machine was not sampled: the program ended too soon."
        return Section("machine", "The machine", (Missing(what, run_again(document, "")),))
    seconds = clock(document, samples)
    for name, title, column, unit in _CHARTS:
        chart = over_time(name, title, samples, seconds, {column: title}, unit)
        blocks += [chart] if chart is not None else []
    if document["gpu"] is None:
        what = "No GPU was used: there is no utilisation, power or clock of one."
        blocks.append(Missing(what, "stepscope doctor tells what this machine has."))
    blocks.append(Facts(tuple(_facts(document))))
    return Section("machine", "The machine", tuple(blocks))


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
    pairs += [(name, size(host[key])) for name, key in sizes if host.get(key) is not None]
    if gpu.get("throttled_by"):
        pairs.append(("GPU throttled by", ", ".join(gpu["throttled_by"])))
    return pairs
