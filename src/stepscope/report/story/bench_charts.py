"""The charts of a grid: against batch size, between models, between devices."""

from math import nan
from typing import Any

from stepscope.report.bench_groups import Group, speed
from stepscope.report.story.blocks import Axis, Chart, Series

Document = dict[str, Any]


def sweep_charts(group: Group, label: str) -> list[Chart]:
    """Throughput, latency and memory against batch, a line per variant; bars for one batch."""
    unit = "tokens/s" if group.mode == "generate" else "samples/s"
    key = "tokens_per_s" if group.mode == "generate" else "samples_per_s"
    if len(group.batches) > 1:
        charts = [
            _against_batch(group, f"{label}-throughput", "Throughput by batch size", key, unit),
            _against_batch(group, f"{label}-latency", "Time by batch size", "mean_ms", "ms"),
            _against_batch(
                group, f"{label}-memory", "Peak memory by batch size", "peak_memory_bytes", "GiB",
                2.0**-30,
            ),
        ]  # fmt: skip
        return [chart for chart in charts if chart is not None]
    points = [point for point in group.points if speed(point) is not None]
    if len(points) < 2:
        return []
    series = Series("", [point["variant"] for point in points], [speed(p) or nan for p in points])
    title = f"Throughput of each variant at batch {group.batches[0]:,}"
    return [Chart(f"{label}-variants", "bars", title, (series,), y=Axis(unit), across=True)]


def _against_batch(
    group: Group, label: str, title: str, key: str, unit: str, by: float = 1.0
) -> Chart | None:
    series = []
    for variant in group.variants:
        points = [point for point in group.of(variant) if point.get(key) is not None]
        if points:
            around = _interval(points, key)
            batches = [point["batch"] for point in points]
            values = [point[key] * by for point in points]
            series.append(Series(variant, batches, values, low=around[0], high=around[1]))
    if not series:
        return None
    return Chart(label, "line", title, tuple(series), Axis("batch size", log=True), Axis(unit))


def _interval(points: list[Document], key: str) -> tuple[list[float], list[float]]:
    """Of the mean time where all have one; else none."""
    sides = ("mean_low_ms", "mean_high_ms")
    if key != "mean_ms" or any(point.get(side) is None for point in points for side in sides):
        return [], []
    return [point[sides[0]] for point in points], [point[sides[1]] for point in points]


def model_chart(every: list[Group], mode: str) -> Chart | None:
    """The best of each model in a mode, a series per device; None for a single model."""
    chosen = [group for group in every if group.mode == mode]
    models = list(dict.fromkeys(group.model for group in chosen))
    if len(models) < 2:
        return None
    series = []
    for device in dict.fromkeys(group.device for group in chosen):
        rates = {group.model: _most(group) for group in chosen if group.device == device}
        series.append(Series(device, models, [rates.get(model, nan) for model in models]))
    unit = "tokens/s" if mode == "generate" else "samples/s"
    title = f"Models in {mode}: the most of any batch and variant"
    return Chart(f"models-{mode}", "bars", title, tuple(series), y=Axis(unit), across=True)


def _most(group: Group) -> float:
    return max((rate for point in group.points if (rate := speed(point)) is not None), default=nan)


def device_chart(every: list[Group]) -> Chart | None:
    """How many times what the CPU does each other device does; None without both."""
    rates = {
        (group.device, group.model, group.mode, point["batch"], point["variant"]): speed(point)
        for group in every
        for point in group.points
    }
    labels, ratios = [], []
    for (device, model, mode, batch, variant), rate in rates.items():
        slow = rates.get(("cpu", model, mode, batch, variant))
        if device != "cpu" and rate and slow:
            more = f", {variant}" if variant != "none" else ""
            labels.append(f"{model} {mode}, batch {batch:,}{more}")
            ratios.append(rate / slow)
    if not labels:
        return None
    title = "The GPU against the CPU"
    return Chart(
        "devices", "bars", title, (Series("", labels, ratios),), y=Axis("times as fast"),
        across=True,
    )  # fmt: skip
