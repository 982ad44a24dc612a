"""What a reader must know to trust a verdict."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.compare.sides import Side


def notes(base: Sequence[Side], other: Sequence[Side], chosen: Mapping[str, Any]) -> list[str]:
    """A line each, the first on processes and noise. `chosen` is the item that speaks for all."""
    sides = (*base, *other)
    return [
        f"{_counted(chosen)}; {chosen['noise_floor_from']}",
        *_samples(chosen),
        *_kinds(sides),
        *_recorded(sides),
        *_phases(sides),
        *_machine(sides),
    ]


def _counted(item: Mapping[str, Any]) -> str:
    """`one process a side, 180 and 180 steps`."""
    ours, theirs = item["base_processes"], item["other_processes"]
    steps = f"{item['base_steps']:,} and {item['other_steps']:,} steps"
    many = "one process a side" if ours == theirs == 1 else f"{ours} and {theirs} processes"
    return f"{many}, {steps}"


def _samples(item: Mapping[str, Any]) -> Iterator[str]:
    if item["per"] == "sample":
        a, b = item["base_samples"], item["other_samples"]
        yield f"{a:.4g} samples a step against {b:.4g}: times of a sample are compared"


def _kinds(sides: Sequence[Side]) -> Iterator[str]:
    kinds = sorted({side.kind for side in sides})
    if len(kinds) > 1:
        yield f"different kinds of results: {' and '.join(kinds)}"


def _recorded(sides: Sequence[Side]) -> Iterator[str]:
    traces = [side.document["steps"] for side in sides if side.kind == "trace"]
    if traces:
        yield "times are of recorded steps, which recording makes longer"
    if any(steps.get("how") == "whole" for steps in traces):
        yield "no steps were found in a recording: it counts as a single one"


def _phases(sides: Sequence[Side]) -> Iterator[str]:
    seen = {side.document.get("phases_seen_by") for side in sides if side.kind == "run"}
    if len(seen) > 1:
        yield "phases are the host's in some runs and the device's in others"


def _machine(sides: Sequence[Side]) -> Iterator[str]:
    """What disturbed a run, each said once with the runs it befell."""
    befell: dict[str, list[str]] = {}
    for side in sides:
        if side.kind == "run":
            for trouble in _troubles(side.document):
                befell.setdefault(trouble, []).append(side.name)
    for trouble, names in befell.items():
        rest = f" and {len(names) - 2} more" if len(names) > 2 else ""
        yield f"{trouble}: {', '.join(names[:2])}{rest}"


def _troubles(document: Mapping[str, Any]) -> Iterator[str]:
    gpu = document.get("gpu") or {}
    cpu = (document["config"].get("machine") or {}).get("cpu") or {}
    for reason in gpu.get("throttled_by") or ():
        yield f"clocks were held down by {reason}"
    if gpu.get("other_processes"):
        yield "other processes used the GPU"
    load, cores = (cpu.get("load_average") or [0.0])[0], cpu.get("usable_cores")
    if cores and load > cores:
        yield "the processor had other work"
