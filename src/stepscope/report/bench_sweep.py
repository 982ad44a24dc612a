"""A sweep over batch sizes in words: where throughput is largest, and where it stops growing."""

from typing import Any

from stepscope.bench.knee import knee
from stepscope.report.bench_groups import Group, speed
from stepscope.report.text import milliseconds, safe

Document = dict[str, Any]


def sweep_words(group: Group) -> list[str]:
    """A sentence for each variant that was measured at three batch sizes or more."""
    words = []
    for variant in group.variants:
        rates = {
            point["batch"]: rate
            for point in group.of(variant)
            if point["status"] == "ok" and (rate := speed(point)) is not None
        }
        if len(rates) < 3:
            continue
        name = f"{safe(variant)}: " if len(group.variants) > 1 else ""
        largest = max(rates, key=lambda batch: rates[batch])
        unit = "tokens/s" if group.mode == "generate" else "samples/s"
        top = f"most at batch {largest:,}, {milliseconds(rates[largest])} {unit}"
        words.append(f"{name}{top}; {_knee_words(rates)}")
    return words


def _knee_words(rates: dict[int, float]) -> str:
    at = knee(list(rates.items()))
    if at is None:
        return "still growing: no knee"
    share = rates[at] / max(rates.values())
    return f"the knee is at {at:,}, {share:.0%} of that: doubling again gains under 10%"
