"""A window, of a run or of a trace alone, as a model: build once, replay with any changes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from stepscope.analyze.replay.calibration import Calibration, bare_times, calibration_of_run
from stepscope.analyze.replay.device_tasks import (
    cost_without_waits,
    device_tasks,
    host_waits,
    is_driver_memory_call,
    queued_shares,
)
from stepscope.analyze.replay.host_chain import (
    HostChain,
    StretchLabels,
    host_chain,
    label_stretches,
)
from stepscope.analyze.replay.simulator import ReplayedStep, replay_tasks
from stepscope.analyze.replay.tasks import (
    MOST_HAND_OVER_MS,
    HostTasks,
    LoaderQueue,
    StretchKind,
    Tasks,
    TaskSelector,
)
from stepscope.analyze.run.data_pipeline import PipelineSource
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.timeline.names import starts_with
from stepscope.analyze.timeline.steps import RecordedStep, StepMark, find_steps
from stepscope.record.facts import BatchFact, ConfigFact, Facts, ImportFact, LoaderFact
from stepscope.record.row_log import STEP_PHASES, RowKind
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline, distinct_values

_DATA_WAIT = STEP_PHASES.index("data_wait")
_MODEL_ERROR = 0.02  # of a step whose every cost is known: what the replay itself leaves out
_UNCALIBRATED = 0.25  # of a trace alone: how far recording may have slowed the host


@dataclass(frozen=True)
class ReplayModel:
    """A window that can be replayed."""

    tasks: Tasks
    error: float  # how far `step_ms` may lie from the bare step, as a share
    calibrated: bool  # whether times are the bare program's; else as recorded

    @cached_property
    def unchanged(self) -> ReplayedStep:
        """The replay without changes: most traces are told nothing that needs it."""
        return replay_tasks(self.tasks)

    @property
    def step_ms(self) -> float:
        """The unchanged replay."""
        return self.unchanged.step_ms

    def changed(self, *changes: Callable[[Tasks], Tasks]) -> Tasks:
        """The tasks with changes, one after the other."""
        tasks = self.tasks
        for change in changes:
            tasks = change(tasks)
        return tasks

    def with_loader(self, loader: LoaderQueue) -> Self:
        """The same window with batches from a loader; unchanged if it takes none."""
        if not len(self.tasks.fetches):
            return self
        known = loader.workers if loader.measured is None else loader.measured
        host = self.tasks.host
        host = replace(host, duration=np.where(host.phase == _DATA_WAIT, 0.0, host.duration))
        tasks = replace(self.tasks, host=host, loader=replace(loader, measured=known))
        return replace(self, tasks=tasks)

    def replay(self, *changes: Callable[[Tasks], Tasks]) -> ReplayedStep:
        """The step with changes."""
        return replay_tasks(self.changed(*changes))

    def host_share(self, chosen: TaskSelector) -> float:
        """The share of the host's self time in chosen stretches, 0 to 1."""
        times = self.tasks.host.duration
        return float(times[chosen(self.tasks)].sum() / max(times.sum(), 1.0))


def build_model(
    timeline: Timeline, steps: list[RecordedStep], calibration: Calibration | None = None
) -> ReplayModel | None:
    """The model of some steps of a recording; None where the host was not recorded in them.

    Without a calibration times are as recorded; data_wait is plain host time.
    """
    if calibration is not None and calibration.window:
        steps = steps[: calibration.window]  # a program that ends in its window leaves half a step
    chain = host_chain(timeline, steps[0].start_ns, _host_end(timeline, steps))
    if chain is None or not len(chain):
        return None
    tasks = _tasks(timeline, steps, chain, calibration)
    doubt = _UNCALIBRATED if calibration is None else calibration.error()
    error = float(np.hypot(_MODEL_ERROR, doubt))
    model = ReplayModel(tasks, error, calibrated=calibration is not None)
    nothing = tasks.host.duration.sum() <= 0 and model.step_ms <= 0
    return None if nothing else model


def _tasks(
    timeline: Timeline, steps: list[RecordedStep], chain: HostChain, calibration: Calibration | None
) -> Tasks:
    starts = np.array([step.start_ns for step in steps], np.int64)
    clocks = None if calibration is None else calibration.clocks.for_steps(len(steps))
    step = chain.steps(starts)
    for _ in range(2 if clocks is not None else 0):  # forward ends where backward is cut to begin
        cuts: list[int] = []
        label_stretches(timeline, chain, step, clocks, cuts)
        chain = chain.cut(np.array(cuts, np.int64))
        step = chain.steps(starts)
    labels = label_stretches(timeline, chain, step, clocks)
    work = device_tasks(timeline, chain, labels, step)
    waits = host_waits(timeline, chain, labels, work, step)
    duration = cost_without_waits(timeline, chain, waits)
    if calibration is not None:
        recorded = np.bincount(labels.phase, duration, len(STEP_PHASES)) / len(steps) / 1e6
        queued = queued_shares(chain, labels, waits, duration)
        if len(waits) < len(steps):  # otherwise nothing keeps the host from running ahead
            busy_ms = float(work.duration.sum()) / len(steps) / 1e6
            calibration = calibration.with_device_busy(busy_ms)
        scale = calibration.scale(recorded, queued)
        duration = bare_times(duration, labels.phase, scale, is_driver_memory_call(timeline, chain))
    host = timeline.host
    loads = starts_with(timeline, "enumerate(DataLoader)") & (host.kind == HostKind.ANNOTATION)
    loads &= (host.start >= chain.start[0]) & (host.start < chain.end[-1])
    taken = chain.at(host.end[loads] - 1)  # the last stretch of each such range
    return Tasks(
        names=timeline.names,
        host=_host(timeline, chain, labels, duration, step),
        work=work,
        waits=waits,
        fetches=distinct_values(taken[labels.phase[taken] == _DATA_WAIT]),
        steps=len(steps),
    )


def _host(
    timeline: Timeline, chain: HostChain, labels: StretchLabels, duration: Column, step: Column
) -> HostTasks:
    host = timeline.host
    kinds = np.append(host.kind, np.uint8(StretchKind.GAP))
    inside = ~np.append(starts_with(timeline, "ProfilerStep"), True)[chain.owner]
    return HostTasks(
        duration=duration,
        did=np.where(inside, kinds[chain.owner], np.uint8(StretchKind.GAP)),
        phase=labels.phase,
        name=np.where(inside, timeline.host_names(chain.owner), NOTHING),
        operator=timeline.host_names(labels.operator),
        call=labels.call,
        step=step,
    )


def _host_end(timeline: Timeline, steps: list[RecordedStep]) -> int:
    """When the host ended the last step; one that ends with its optimizer may last longer on the
    device."""
    host, end = timeline.host, steps[-1].end_ns
    ended = host.end[starts_with(timeline, "Optimizer.step#") & (host.start < end)]
    if find_steps(timeline).how is StepMark.OPTIMIZER and len(ended):
        return min(end, max(int(ended.max()), steps[-1].start_ns + 1))
    return end


_CPU_BOUND_SHARE = 0.7  # of making a batch: the rest rather waits for a core that others have


def model_of_run(
    records: RunRecords, calibrated: Calibration | None = None, cores: float | None = None
) -> ReplayModel | None:
    """None where no window was recorded, or it cannot be read.

    `calibrated` replaces the run's own calibration, `cores` those it could use, where other
    processes left it fewer.
    """
    timeline = records.timeline
    if timeline is None:
        return None
    calibrated = calibrated or calibration_of_run(records)
    model = build_model(timeline, find_steps(timeline).steps, calibrated)
    if model is None or calibrated is None or not len(model.tasks.fetches):
        return model
    batches = len(model.tasks.fetches) / model.tasks.steps
    cores = cores or records.run.usable_cores or 1.0
    loader = run_loader(records.facts, records.pipeline, cores, calibrated, batches)
    if loader is None:
        return model
    used = records.samples["rss_bytes"] if records.samples.size else np.zeros(0)
    memory_gb = float(np.nanmedian(used)) / 1e9 if np.isfinite(used).any() else 0.0
    epoch = _batches_of_an_epoch(records, batches)
    return model.with_loader(replace(loader, epoch=epoch, memory_gb=memory_gb))


def _batches_of_an_epoch(records: RunRecords, batches: float) -> float:
    """What an iterator of the program's loader gave, or would give; 0 where that is not known.
    `batches` is how many a step takes."""
    steps = records.steps
    starts = np.flatnonzero(steps.epoch_start > 0)
    starts = starts[starts > 0]
    if len(starts):
        return batches * float(np.median(np.diff(starts, prepend=0)))
    made = records.rows["kind"].astype(int) == RowKind.EPOCH
    if made.sum() > len(steps) / 2:
        return batches
    sizes = [(one.samples, one.batch_size) for one in records.facts.all(LoaderFact)]
    return max((count / size for count, size in sizes if count and size), default=0.0)


def model_of_trace(timeline: Timeline) -> ReplayModel | None:
    """The model of a recording alone: of the recorded step, not of the bare one."""
    return build_model(timeline, find_steps(timeline).steps)


def run_loader(
    facts: Facts,
    sources: list[PipelineSource],
    cores: float,
    clocks: Calibration,
    batches: float,
) -> LoaderQueue | None:
    """The run's busiest loader; None where it has none. `batches` is how many a step takes."""
    loaders = facts.all(LoaderFact)
    if not loaders or batches <= 0:
        return None
    workers = max(fact.num_workers for fact in loaders)
    waited = clocks.bare_ms["data_wait"] / batches
    share = sources[0].processor_share if sources else None
    config = facts.last(ConfigFact)
    on = {d.split(":")[0] for model in (config.models if config else ()) for d in model.devices}
    threads = float(config.switches.threads if config else 1)
    started = {fact.start_method for fact in loaders} - {None, "fork"}
    imports = sum(fact.elapsed_ns for fact in facts.all(ImportFact)) / 1e6
    loader = LoaderQueue(
        waited,
        workers,
        cores,
        host_cores=1.0 if on - {"cpu"} else min(cores, threads),
        processor=1.0 if share is None or share > _CPU_BOUND_SHARE else share,
        batch_mb=max((fact.bytes for fact in facts.all(BatchFact)), default=0) / 1e6,
        measured=workers,
        import_ms=imports if started else 0.0,
    )
    if not workers:
        return loader
    ready = min(clocks.data_wait_low_ms / batches, waited, MOST_HAND_OVER_MS)
    made = sources[0].ms_per_batch if sources else 0.0
    host = sum(ms for phase, ms in clocks.bare_ms.items() if phase != "data_wait") / batches
    behind = max(0.0, made / workers - host - ready)  # what the workers' pace explains
    late = max(0.0, waited - ready - behind)
    return replace(loader, batch_ms=made, hand_over_ms=ready, late_ms=late)
