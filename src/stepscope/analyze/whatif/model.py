"""A window as a model: build once, replay with any changes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.steps import Step
from stepscope.analyze.whatif.calibrate import Calibration
from stepscope.analyze.whatif.chain import Chain, host_chain
from stepscope.analyze.whatif.labels import Labels, label
from stepscope.analyze.whatif.replay import Replayed, replay
from stepscope.analyze.whatif.stops import by_driver, host_waits, own_cost, queued_shares
from stepscope.analyze.whatif.tasks import Did, Host, Loader, Tasks
from stepscope.analyze.whatif.unstretched import bare_times
from stepscope.analyze.whatif.works import device_tasks
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

_DATA_WAIT = STEP_PHASES.index("data_wait")
_MODEL_ERROR = 0.02  # of a step whose every cost is known: what the replay itself leaves out
_UNCALIBRATED = 0.25  # of a bare trace: how far recording may have slowed the host


@dataclass(frozen=True, slots=True)
class Model:
    """A window that can be replayed."""

    tasks: Tasks
    unchanged: Replayed
    error: float
    """How far `step_ms` may lie from the bare step, as a share."""
    calibrated: bool
    """Whether times are those of the bare program; else they are as recorded."""

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

    def fed_by(self, loader: Loader) -> "Model":
        """The same window with batches from a loader that became known later."""
        tasks = with_loader(self.tasks, loader)
        return replace(self, tasks=tasks, unchanged=replay(tasks))

    def replay(self, *changes: Callable[[Tasks], Tasks]) -> Replayed:
        """The step with changes."""
        return replay(self.changed(*changes))


def build(
    timeline: Timeline,
    steps: list[Step],
    calibration: Calibration | None = None,
    loader: Loader | None = None,
) -> Model | None:
    """The model of some steps of a recording; None where the host was not recorded in them.

    Without a calibration times are as recorded; without a loader data_wait is plain host time.
    """
    if calibration is not None and calibration.window:
        steps = steps[: calibration.window]  # a program that ends in its window leaves half a step
    chain = host_chain(timeline, steps[0].start_ns, _host_end(timeline, steps))
    if chain is None or not len(chain):
        return None
    tasks = with_loader(_tasks(timeline, steps, chain, calibration), loader)
    unchanged = replay(tasks)
    if unchanged.step_ms <= 0:
        return None
    doubt = _UNCALIBRATED if calibration is None else calibration.error()
    return Model(tasks, unchanged, float(np.hypot(_MODEL_ERROR, doubt)), calibration is not None)


def with_loader(tasks: Tasks, loader: Loader | None) -> Tasks:
    """Tasks whose batches come from a loader; as they are where none are taken or none is known."""
    if loader is None or not len(tasks.fetches):
        return tasks
    host = tasks.host
    duration = np.where(host.phase == _DATA_WAIT, 0.0, host.duration)
    known = loader.workers if loader.measured is None else loader.measured
    return replace(
        tasks, host=replace(host, duration=duration), loader=replace(loader, measured=known)
    )


def _tasks(
    timeline: Timeline, steps: list[Step], chain: Chain, calibration: Calibration | None
) -> Tasks:
    starts = np.array([step.start_ns for step in steps], np.int64)
    clocks = None if calibration is None else calibration.clocks.of(len(steps))
    for _ in range(2 if clocks is not None else 0):  # forward ends where backward is cut to begin
        cuts: list[int] = []
        label(timeline, chain, _steps_of(chain, starts), clocks, cuts)
        chain = chain.cut(np.array(cuts, np.int64))
    step = _steps_of(chain, starts)
    labels = label(timeline, chain, step, clocks)
    work = device_tasks(timeline, chain, labels, step)
    waits = host_waits(timeline, chain, labels, work, step)
    duration = own_cost(timeline, chain, waits)
    if calibration is not None:
        recorded = np.bincount(labels.phase, duration, len(STEP_PHASES)) / len(steps) / 1e6
        queued = queued_shares(chain, labels, waits, duration)
        if len(waits) < len(steps):  # nothing else keeps the host from running ahead
            calibration = calibration.beside(float(work.duration.sum()) / len(steps) / 1e6)
        scale = calibration.scale(recorded, queued)
        duration = bare_times(duration, labels.phase, scale, by_driver(timeline, chain))
    return Tasks(
        names=timeline.names,
        host=_host(timeline, chain, labels, duration, step),
        work=work,
        waits=waits,
        fetches=_fetches(timeline, chain, labels),
        steps=len(steps),
    )


def _steps_of(chain: Chain, starts: Column) -> Column:
    step: Column = np.searchsorted(starts, chain.start, "right") - 1
    return step


def _host(timeline: Timeline, chain: Chain, labels: Labels, duration: Column, step: Column) -> Host:
    host = timeline.host
    names = np.append(host.name, np.int32(NOTHING))
    kinds = np.append(host.kind, np.uint8(Did.GAP))
    marks = names_that(timeline, host.name, lambda name: name.startswith("ProfilerStep"))
    inside = ~np.append(marks, True)[chain.owner]
    return Host(
        duration=duration,
        did=np.where(inside, kinds[chain.owner], np.uint8(Did.GAP)),
        phase=labels.phase,
        name=np.where(inside, names[chain.owner], NOTHING),
        operator=names[labels.operator],
        call=labels.call,
        step=step,
    )


def _fetches(timeline: Timeline, chain: Chain, labels: Labels) -> Column:
    """The last stretch of each range in which a loader was asked for a batch."""
    host = timeline.host
    loads = names_that(timeline, host.name, lambda n: n.startswith("enumerate(DataLoader)"))
    asked = np.flatnonzero(loads & (host.kind == HostKind.ANNOTATION))
    begun = host.start[asked]
    asked = asked[(begun >= chain.start[0]) & (begun < chain.end[-1])]
    places = chain.at(host.start[asked] + host.duration[asked] - 1)
    return np.unique(places[labels.phase[places] == _DATA_WAIT])


def _host_end(timeline: Timeline, steps: list[Step]) -> int:
    """Where the host had ended the last step: one told by its optimizer may go on on the device."""
    host, end = timeline.host, steps[-1].end_ns
    marks = names_that(timeline, host.name, lambda name: name.startswith("Optimizer.step#"))
    inside = np.flatnonzero(marks & (host.start < end))
    if steps[-1].name.startswith("step ") and len(inside):
        last = int((host.start[inside] + host.duration[inside]).max())
        return min(end, max(last, steps[-1].start_ns + 1))
    return end
