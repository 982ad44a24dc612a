"""A timeline, or one per rank, as one document: what `analyze` prints and `analyze --json` hands
out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from stepscope.analyze.timeline.attribution import Attribution, attribute
from stepscope.analyze.timeline.communication import study_communication
from stepscope.analyze.timeline.critical_path import critical_path, path_window
from stepscope.analyze.timeline.host import HostUse, host_use
from stepscope.analyze.timeline.idle import IDLE_CAUSES, DeviceIdle, explain_idle
from stepscope.analyze.timeline.intervals import DeviceWork, device_work
from stepscope.analyze.timeline.kernels import heaviest_operators, kernel_report
from stepscope.analyze.timeline.launches import Launches, study_copies, study_launches
from stepscope.analyze.timeline.memory import memory_use
from stepscope.analyze.timeline.ranks import compare_ranks, rank_facts
from stepscope.analyze.timeline.roofline.ceilings import ceilings_for, used_device
from stepscope.analyze.timeline.roofline.operator_work import operator_work
from stepscope.analyze.timeline.roofline.rates import WorkCounters, roofline_of, with_counters
from stepscope.analyze.timeline.steps import (
    Breakdown,
    DeviceBreakdown,
    RecordedSteps,
    break_down,
    find_steps,
)
from stepscope.record.timeline import Column, Timeline
from stepscope.stats.series import drift, find_spikes

ANALYZE_SCHEMA = "stepscope.analyze/1"
_Document = dict[str, Any]


def analyze_timeline(
    timeline: Timeline,
    cached: Iterable[Mapping[str, Any]] = (),
    counters: Mapping[int, WorkCounters] | None = None,
) -> _Document:
    """Everything a timeline tells. `cached` are measured ceilings, `counters` by device event."""
    work = device_work(timeline)
    steps = find_steps(timeline, work)
    main = _busiest(work)
    parts = break_down(timeline, steps, work)
    idle = explain_idle(timeline, steps, work)
    attribution = attribute(timeline)
    launches = study_launches(timeline, steps)
    host = host_use(timeline)
    kernels = kernel_report(timeline, attribution)
    document: _Document = {
        "schema": ANALYZE_SCHEMA,
        "source": _source(timeline),
        "quality": _quality(timeline, launches, host),
        "steps": _steps(steps),
        "breakdown_ns": _breakdown(parts, main, steps),
        "idle_ns": _idle(idle, main),
        "devices": _devices(parts, idle),
        "kernels": [asdict(kernel) for kernel in kernels.kernels],
        "by": {
            "category": [asdict(group) for group in kernels.categories],
            "operator": [asdict(group) for group in kernels.operators],
            "module": [asdict(group) for group in kernels.modules],
            "line": [asdict(group) for group in kernels.lines],
            "phase": [asdict(group) for group in kernels.phases],
        },
        "tensor_cores": asdict(kernels.tensor_cores),
        "occupancy": kernels.occupancy,
        "operators": [asdict(one) for one in heaviest_operators(timeline, attribution)],
        "launch": asdict(launches),
        "copies": [asdict(copy) for copy in study_copies(timeline, work)],
        "roofline": _roofline(timeline, attribution, steps, cached, counters),
    }
    memory = memory_use(timeline, steps.steps)
    document["memory"] = None if memory is None else [asdict(use) for use in memory]
    document["host"] = None if host is None else asdict(host)
    talk = study_communication(timeline, steps.steps, work)
    document["communication"] = None if talk is None else asdict(talk)
    path = critical_path(timeline, *path_window(timeline, steps.steps))
    document["critical_path"] = None if path is None else asdict(path)
    return document


def _source(timeline: Timeline) -> _Document:
    device = used_device(timeline)
    return {
        "file": timeline.source,
        "tool": timeline.tool,
        "rank": timeline.rank,
        "world_size": timeline.world_size,
        "backend": timeline.backend,
        "device": device.name if device else None,
        "span_ns": timeline.span[1] - timeline.span[0],
        "has": {
            "device": len(timeline.device) > 0,
            "operators": len(timeline.host) > 0,
            "shapes": len(timeline.shapes) > 0,
            "stacks": any(name.startswith("nn.Module: ") for name in timeline.names),
            "memory": len(timeline.memory) > 0,
        },
    }


def _quality(timeline: Timeline, launches: Launches, host: HostUse | None) -> _Document:
    """How far the recording can be trusted, and what the profiler itself took of it."""
    return asdict(timeline.quality) | {
        "work_without_launch": launches.without_launch,
        "work_without_launch_ns": launches.without_launch_ns,
        "skewed_launches": launches.skewed,
        "graph_kernels": launches.graph_kernels,
        "graph_opaque_ns": launches.graph_ns,
        "profiler_ns": host.overhead.total_ns if host else None,
        "profiler_share": host.overhead.share if host else None,
    }


def _steps(steps: RecordedSteps) -> _Document:
    """In the shape that `show` has for the steps of a run; times are as recorded."""
    times = np.array([step.end_ns - step.start_ns for step in steps.steps], float) / 1e6
    jumps = find_spikes(times)
    return {
        "count": len(times),
        "what": "training" if steps.how != "whole" else "recording",
        "how": steps.how,
        "inferred": steps.how in ("optimizer", "annotation"),
        "mean_ms": float(times.mean()),
        "median_ms": float(np.median(times)),
        "p95_ms": float(np.percentile(times, 95)),
        "std_ms": float(times.std()),
        "samples_per_s": None,
        "samples_per_step": None,
        "warmup_steps": 0,
        "window_steps": len(times),
        "measured_steps": len(times),
        "by_optimizer": [],
        "spikes": [{"step": jump.index + 1, "ms": jump.value} for jump in jumps[:5]],
        "spike_count": len(jumps),
        "drift": drift(times),
        "between_ns": steps.between_ns,
        "outside_ns": steps.outside_ns,
        "each": [asdict(step) for step in steps.steps],
    }


def _busiest(work: list[DeviceWork]) -> int | None:
    """The device that worked longest; None where none did."""
    from stepscope.analyze.timeline.intervals import total

    return max(work, key=lambda one: total(one.busy)).device if work else None


def _breakdown(parts: list[DeviceBreakdown], main: int | None, steps: RecordedSteps) -> _Document:
    """Of the device that worked longest, over all steps; None for what no device did."""
    for part in parts:
        if part.device == main:
            return asdict(part.total)
    wall = steps.steps[-1].end_ns - steps.steps[0].start_ns
    return {**dict.fromkeys(Breakdown.__dataclass_fields__), "wall": wall}


def _idle(idle: list[DeviceIdle], main: int | None) -> _Document:
    """Idle of that device by cause; None where there is no device."""
    for one in idle:
        if one.device == main:
            return {cause: one.causes[cause].total_ns for cause in one.causes}
    return dict.fromkeys(IDLE_CAUSES)


def _devices(parts: list[DeviceBreakdown], idle: list[DeviceIdle]) -> list[_Document]:
    causes = {one.device: asdict(one)["causes"] for one in idle}
    return [
        {
            "device": part.device,
            "breakdown_ns": asdict(part.total),
            "whole_ns": asdict(part.whole),
            "steps": [asdict(step) for step in part.steps],
            "idle": causes.get(part.device, {}),
        }
        for part in parts
    ]


def _roofline(
    timeline: Timeline,
    attribution: Attribution,
    steps: RecordedSteps,
    cached: Iterable[Mapping[str, Any]],
    counters: Mapping[int, WorkCounters] | None,
) -> _Document | None:
    if not len(timeline.device) or not timeline.shapes:
        return None
    work = operator_work(timeline, attribution)
    ceilings = ceilings_for(timeline, cached)
    start, end = steps.steps[0].start_ns, steps.steps[-1].end_ns
    selected = launched_within(timeline, start, end)
    found = roofline_of(
        timeline, attribution, work, ceilings, len(steps.steps), end - start, selected
    )
    if counters:
        found = with_counters(timeline, attribution, work, found, counters)
    return asdict(found)


def launched_within(timeline: Timeline, start: int, end: int) -> Column:
    """Which device events were launched in a stretch of time, or began in it without a launch."""
    device, host = timeline.device, timeline.host
    begun = device.start
    if len(host):
        begun = np.where(device.launch >= 0, host.start[device.launch], device.start)
    inside: Column = (begun >= start) & (begun < end)
    return inside


def analyze_ranks(
    timelines: Iterable[Timeline], cached: Iterable[Mapping[str, Any]] = ()
) -> _Document:
    """`ranks` has a document for each recording, `comparison` what only all of them tell."""
    cached = list(cached)
    documents, facts = [], []
    for timeline in timelines:
        documents.append(analyze_timeline(timeline, cached))
        facts.append(rank_facts(timeline))
    return {
        "schema": ANALYZE_SCHEMA,
        "ranks": documents,
        "comparison": asdict(compare_ranks(facts)),
    }
