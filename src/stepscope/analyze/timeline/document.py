"""The analysis of a timeline, or of one per rank: the document of `analyze --json`."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

import numpy as np
from msgspec import Struct, structs

from stepscope.analyze.timeline.attribution import attribute
from stepscope.analyze.timeline.communication import Communication, launched_at, study_communication
from stepscope.analyze.timeline.critical_path import CriticalPath, critical_path, path_window
from stepscope.analyze.timeline.host import HostUse, host_use
from stepscope.analyze.timeline.idle import IdleTime, explain_idle
from stepscope.analyze.timeline.kernels import (
    HeavyOperator,
    Kernel,
    TensorCores,
    WorkBy,
    heaviest_operators,
    kernel_report,
)
from stepscope.analyze.timeline.launches import Copies, Launches, study_copies, study_launches
from stepscope.analyze.timeline.memory import MemoryUse, memory_use
from stepscope.analyze.timeline.ranks import RankComparison, compare_ranks, rank_facts
from stepscope.analyze.timeline.roofline.ceilings import ceilings_for, used_device
from stepscope.analyze.timeline.roofline.operator_work import operator_work
from stepscope.analyze.timeline.roofline.rates import (
    Roofline,
    WorkCounters,
    roofline_of,
    with_counters,
)
from stepscope.analyze.timeline.steps import (
    Breakdown,
    RecordedStep,
    RecordedSteps,
    StepMark,
    break_down,
    find_steps,
)
from stepscope.hardware.ceiling_cache import DeviceCeilings
from stepscope.record.kinds import IdleCause
from stepscope.record.timeline import Column, Timeline, percentiles
from stepscope.stats.series import drift, find_spikes

ANALYZE_SCHEMA = "stepscope.analyze/2"


class Recorded(Struct, frozen=True):
    """What a recording holds."""

    device: bool
    operators: bool
    shapes: bool
    stacks: bool
    memory: bool


class Source(Struct, frozen=True):
    """Where a recording comes from; None where it does not say."""

    file: str
    tool: str
    rank: int | None
    world_size: int | None
    backend: str | None
    device: str | None
    span_ns: int
    has: Recorded


class RecordingQuality(Struct, frozen=True):
    """How far the recording can be trusted, and what the profiler itself took of it."""

    read: int
    kept: int
    repaired: dict[str, int]
    dropped: dict[str, int]
    ignored: dict[str, int]
    truncated: bool
    notes: list[str]
    work_without_launch: int
    work_without_launch_ns: int
    skewed_launches: int
    graph_kernels: int
    graph_opaque_ns: int
    profiler_ns: int | None
    profiler_share: float | None


class StepOutlier(Struct, frozen=True):
    """A step far longer than its neighbours; they count from 1."""

    step: int
    ms: float


class StepTimes(Struct, frozen=True, kw_only=True):
    """The recorded steps, with the keys of a run's steps in `show`; times are as recorded."""

    count: int
    what: str
    how: StepMark
    inferred: bool
    mean_ms: float
    median_ms: float
    p95_ms: float
    std_ms: float
    samples_per_s: None = None
    samples_per_step: None = None
    warmup_steps: int = 0
    window_steps: int
    measured_steps: int
    by_optimizer: list[str] = []
    spikes: list[StepOutlier]
    spike_count: int
    drift: float | None
    between_ns: int
    outside_ns: int
    each: list[RecordedStep]


class DeviceTimes(Struct, frozen=True):
    """One device: all steps, the whole recording, each step, and why it was idle."""

    device: int
    breakdown_ns: Breakdown
    whole_ns: Breakdown
    steps: list[Breakdown]
    idle: dict[IdleCause, IdleTime]


class TraceAnalysis(Struct, frozen=True):
    """Everything a timeline tells; None for what was not recorded.

    `breakdown_ns` and `idle_ns` are of the device that worked longest; their values are None
    where no device did anything.
    """

    schema: str
    source: Source
    quality: RecordingQuality
    steps: StepTimes
    breakdown_ns: dict[str, int | None]
    idle_ns: dict[IdleCause, int | None]
    devices: list[DeviceTimes]
    kernels: list[Kernel]
    by: WorkBy
    tensor_cores: TensorCores
    occupancy: float | None
    operators: list[HeavyOperator]
    launch: Launches
    copies: list[Copies]
    roofline: Roofline | None
    memory: list[MemoryUse] | None
    host: HostUse | None
    communication: Communication | None
    critical_path: CriticalPath | None


def trace_analysis(
    timeline: Timeline,
    cached: Iterable[DeviceCeilings] = (),
    counters: Mapping[int, WorkCounters] | None = None,
) -> TraceAnalysis:
    """Everything a timeline tells. `cached` are measured ceilings, `counters` by device event."""
    steps, attribution = find_steps(timeline), attribute(timeline)
    causes = {one.device: one.causes for one in explain_idle(timeline, steps)}
    devices = [
        DeviceTimes(part.device, part.total, part.whole, part.steps, causes[part.device])
        for part in break_down(timeline, steps)
    ]
    main = max(devices, key=lambda one: one.whole_ns.wall - one.whole_ns.idle, default=None)
    launches, host = study_launches(timeline, steps), host_use(timeline)
    kernels = kernel_report(timeline, attribution)
    start, end, roofline = steps.steps[0].start_ns, steps.steps[-1].end_ns, None
    nothing = {**dict.fromkeys(Breakdown.__struct_fields__), "wall": end - start}
    if len(timeline.device) and timeline.shapes:
        work, ceilings = operator_work(timeline, attribution), ceilings_for(timeline, cached)
        during = launched_within(timeline, start, end)
        count, wall = len(steps.steps), end - start
        roofline = roofline_of(timeline, attribution, work, ceilings, count, wall, during)
        if counters:
            roofline = with_counters(timeline, attribution, work, roofline, counters)
    return TraceAnalysis(
        schema=ANALYZE_SCHEMA,
        source=_source(timeline),
        quality=RecordingQuality(
            **asdict(timeline.quality),
            work_without_launch=launches.without_launch,
            work_without_launch_ns=launches.without_launch_ns,
            skewed_launches=launches.skewed,
            graph_kernels=launches.graph_kernels,
            graph_opaque_ns=launches.graph_ns,
            profiler_ns=host.overhead.total_ns if host else None,
            profiler_share=host.overhead.share if host else None,
        ),
        steps=_steps(steps),
        breakdown_ns=structs.asdict(main.breakdown_ns) if main else nothing,
        idle_ns={c: None if main is None else main.idle[c].total_ns for c in IdleCause},
        devices=devices,
        kernels=kernels.kernels,
        by=kernels.by,
        tensor_cores=kernels.tensor_cores,
        occupancy=kernels.occupancy,
        operators=heaviest_operators(timeline, attribution),
        launch=launches,
        copies=study_copies(timeline),
        roofline=roofline,
        memory=memory_use(timeline, steps.steps),
        host=host,
        communication=study_communication(timeline, steps.steps),
        critical_path=critical_path(timeline, *path_window(timeline, steps.steps)),
    )


def _source(timeline: Timeline) -> Source:
    device = used_device(timeline)
    return Source(
        file=timeline.source,
        tool=timeline.tool,
        rank=timeline.rank,
        world_size=timeline.world_size,
        backend=timeline.backend,
        device=device.name if device else None,
        span_ns=timeline.span[1] - timeline.span[0],
        has=Recorded(
            device=len(timeline.device) > 0,
            operators=len(timeline.host) > 0,
            shapes=len(timeline.shapes) > 0,
            stacks=any(name.startswith("nn.Module: ") for name in timeline.names),
            memory=len(timeline.memory) > 0,
        ),
    )


def _steps(steps: RecordedSteps) -> StepTimes:
    times = np.array([step.end_ns - step.start_ns for step in steps.steps], float) / 1e6
    jumps = find_spikes(times)
    return StepTimes(
        count=len(times),
        what="recording" if steps.how is StepMark.WHOLE else "training",
        how=steps.how,
        inferred=steps.how in (StepMark.OPTIMIZER, StepMark.ANNOTATION),
        mean_ms=float(times.mean()),
        median_ms=float(np.median(times)),
        p95_ms=percentiles(times, 95)[0],
        std_ms=float(times.std()),
        window_steps=len(times),
        measured_steps=len(times),
        spikes=[StepOutlier(jump.index + 1, jump.value) for jump in jumps[:5]],
        spike_count=len(jumps),
        drift=drift(times),
        between_ns=steps.between_ns,
        outside_ns=steps.outside_ns,
        each=steps.steps,
    )


def launched_within(timeline: Timeline, start: int, end: int) -> Column:
    """Which device events were launched in a stretch of time, or began in it without a launch."""
    begun = launched_at(timeline, np.arange(len(timeline.device)))
    inside: Column = (begun >= start) & (begun < end)
    return inside


class RankAnalysis(Struct, frozen=True):
    """Several ranks: each recording, and what only all of them together tell."""

    schema: str
    ranks: list[TraceAnalysis]
    comparison: RankComparison


def analyze_ranks(
    timelines: Iterable[Timeline], cached: Iterable[DeviceCeilings] = ()
) -> RankAnalysis:
    """Each rank, and all of them compared."""
    cached = list(cached)
    ranks, facts = [], []
    for timeline in timelines:
        ranks.append(trace_analysis(timeline, cached))
        facts.append(rank_facts(timeline))
    return RankAnalysis(ANALYZE_SCHEMA, ranks, compare_ranks(facts))
