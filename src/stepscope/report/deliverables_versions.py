"""The versions of a program that a result tells of: how fast each is, and what it takes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from stepscope.report.story.places import shown_file
from stepscope.report.subject import Subject

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """None: not known. `gpu_use` is 0 to 1."""

    name: str
    step_ms: float | None
    samples_per_s: float | None
    gpu_use: float | None
    memory_bytes: float | None

    def speedup_to(self, first: "Version") -> float | None:
        """How many times as fast: by samples where both are known, else by steps."""
        if self.samples_per_s and first.samples_per_s:
            return self.samples_per_s / first.samples_per_s
        return first.step_ms / self.step_ms if self.step_ms and first.step_ms else None


def versions(subject: Subject) -> Iterator[Version]:
    """One of a run or trace; each rung of a tune; each measured point of a bench."""
    document = subject.document
    if subject.kind == "run":
        yield _run(subject.name, document)
    elif subject.kind == "trace":
        parts = document["breakdown_ns"]
        use = 1 - parts["idle"] / parts["wall"] if parts["idle"] is not None else None
        yield Version(subject.name, document["steps"]["mean_ms"], None, use, None)
    elif subject.kind == "tune":
        yield _measured("as it is", document["baseline"])
        for rung in document["ladder"]:
            yield _measured(f"+ {rung['label']}", rung)
    else:
        for point in document["points"]:
            if point["status"] == "ok":
                yield _point(point)


def _run(name: str, document: Document) -> Version:
    steps, gpu = document["steps"], document["gpu"] or {}
    fixes = [
        one["name"] + (f"={one['value']}" if one["value"] else "")
        for one in document["fixes"]
        if one["state"] == "applied"
    ]
    program = shown_file(document["run"]["program"], document["run"]["program"])
    label = " ".join([program, *(f"+ {fix}" for fix in fixes), f"({name})"])
    peak = gpu.get("peak_allocated_bytes") or document["memory"]["peak_bytes"]
    rate, use = steps["samples_per_s"], gpu.get("busy_fraction")
    return Version(label, steps["mean_ms"], rate, use, peak)


def _measured(name: str, one: Document) -> Version:
    keys = ("step_ms", "samples_per_s", "gpu_busy", "peak_memory_bytes")
    return Version(name, *(one.get(key) for key in keys))


def _point(one: Document) -> Version:
    variant = one.get("variant") or f"{one.get('workers')} workers"
    name = f"{one['model']} {one['mode']} on {one['device']}, batch {one['batch']:,}, {variant}"
    step = one.get("mean_ms")
    keys = ("samples_per_s", "gpu_busy", "peak_memory_bytes")
    return Version(name, step, *(one.get(key) for key in keys))
