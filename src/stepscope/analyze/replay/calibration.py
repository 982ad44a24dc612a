"""Converts recorded to bare host time, by the always-on clocks inside and outside the window."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from stepscope.analyze.replay.host_chain import WindowClocks
from stepscope.analyze.replay.tasks import BARE_HOST_SHARE
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.steps import Rows, Steps
from stepscope.record.row_log import STEP_PHASES, RowKind
from stepscope.record.timeline import Column
from stepscope.stats.series import Bools, Floats, warmup_length

_LEAST_LEFT = 0.5  # of the time of what recording stretches, whatever it leaves alone


def bare_times(duration: Floats, phase: Column, scale: Floats, fixed: Bools) -> Floats:
    """Bare durations of recorded stretches: each phase as a whole is scaled by `scale`. Stretches
    that recording does not slow (`fixed`) keep their duration; the others of their phase absorb the
    difference, down to half their share.
    """
    size = len(scale)
    whole = np.bincount(phase, duration, size)
    kept = np.bincount(phase[fixed], duration[fixed], size)
    rest, aim = whole - kept, scale * whole
    left = np.maximum(aim - kept, _LEAST_LEFT * scale * rest)
    others = np.divide(left, rest, out=scale.copy(), where=rest > 0)
    stays = np.divide(aim - left, kept, out=np.ones(size), where=kept > 0)
    times: Floats = duration * np.where(fixed, stays[phase], others[phase])
    return times


_BLOCKS = 8
_NOTABLE = 0.01
_QUEUED = 0.1
_COMPUTED = ("forward", "backward", "optimizer")
_OTHER = STEP_PHASES.index("other")
_COMPUTES = [STEP_PHASES.index(phase) for phase in _COMPUTED]
_IS_OTHER = np.arange(len(STEP_PHASES)) == _OTHER
_FREE = 3  # steps after the last window: the device's queue is empty, and fills again
_FULL = 0.95  # of the bare step: a device busy this long sets the pace
_ODD = 0.05  # of bare steps, at either end
_QUEUE_BOUND = 0.85  # of the usual host time: a host this fast when free is otherwise held up


@dataclass(frozen=True, slots=True)
class Calibration:
    """Host time of the bare program over that in the window, by phase, without waits."""

    factors: Mapping[str, float]
    uncertainty: Mapping[str, float]
    """Relative uncertainty of each factor, from the spread of steps on both sides."""
    bare_ms: Mapping[str, float]  # mean host time of a bare step by phase, without waits
    window_ms: Mapping[str, float]  # the same of a step in the window
    step_ms: float  # the bare step itself, only to check the replay
    usual_ms: float  # the same without the few longest and shortest
    steps: int  # number of bare steps used
    window: int = 0  # whole steps in the window
    outside: float = 0.0  # share of the window's time outside steps, by the clocks
    clocks: WindowClocks = field(default_factory=lambda: WindowClocks(np.zeros(0), np.zeros(0)))
    """What the clocks measured in each step of the window."""
    free_ms: Mapping[str, float] = field(default_factory=dict)
    """Host time of the compute phases in the steps right after the windows, when the device's queue
    is not full yet; empty without a device, or if too few steps follow."""
    queue_bound: bool = False
    """Whether a full queue holds the host up; `bare_ms` is then from steps in which it did not."""
    data_wait_low_ms: float = 0.0
    """What receiving a ready batch costs the host: the low end of bare data waits."""

    def with_device_busy(self, busy_ms: float) -> Self:
        """The same, given the device's work per step.

        A device busy for the whole bare step holds the host up, in the clocks too: then host time
        comes from steps in which it did not or, without any, from a prior.
        """
        if busy_ms < _FULL * self.usual_ms:
            return self
        bare, factors = dict(self.bare_ms), dict(self.factors)
        free = {p: min(bare[p], ms) for p, ms in self.free_ms.items()}
        if not free or sum(free.values()) > _QUEUE_BOUND * sum(bare[p] for p in free):
            for phase in _COMPUTED:
                factors[phase] = min(factors[phase], BARE_HOST_SHARE)
            return replace(self, factors=factors)
        return replace(self, bare_ms=bare | free, queue_bound=True)

    def scale(self, recorded_ms: Floats, queued: Floats | None = None) -> Floats:
        """Factors from recorded to bare host time, by phase.

        `recorded_ms` is a step's recorded host time without waits. What exceeds the clocks' time of
        a phase may belong elsewhere and is scaled like the whole step; time outside steps (a new
        epoch, an evaluation) is left out, and the bare time of phases missing in the recording goes
        into `other`. `queued` is the share of each phase that launches waited at a full queue: the
        clocks include that wait too, so a prior is used there.
        """
        bare, slowed, factors = (
            np.array([table.get(phase, 0.0) for phase in STEP_PHASES])
            for table in (self.bare_ms, self.window_ms, self.factors)
        )
        if queued is not None:
            factors = np.where(queued > _QUEUED, np.minimum(factors, BARE_HOST_SHARE), factors)
        whole = float(bare.sum() / slowed.sum()) if slowed.any() else 1.0
        surely = np.minimum(recorded_ms, slowed) if slowed.any() else recorded_ms
        aim = factors * surely + whole * (recorded_ms - surely)
        if self.queue_bound:
            aim[_COMPUTES] = np.minimum(bare, recorded_ms)[_COMPUTES]
        if self.outside > _NOTABLE:
            aim[_OTHER] = bare[_OTHER]
        aim[_OTHER] += bare[(recorded_ms <= 0) & ~_IS_OTHER].sum()
        scaled: Floats = np.divide(aim, recorded_ms, out=factors, where=recorded_ms > 0)
        return scaled

    def error(self) -> float:
        """The relative error of a step of pure host time."""
        off = sum((self.bare_ms[p] * self.uncertainty[p]) ** 2 for p in self.factors)
        whole = sum(self.bare_ms.values())
        return float(off**0.5 / whole) if whole else 0.0


def calibrate(
    rows: Rows, steps: Steps, first: int | None = None, use: Callable[[int], Bools] | None = None
) -> Calibration | None:
    """Calibrate from a run's rows and steps; None without a window, or without steps outside it.

    `first` is the number of warm-up steps; None: detected. `use` picks the bare steps to calibrate
    by, so that the others can test it; None: all.
    """
    window = window_steps(rows, steps) & steps.clocked
    if not window.any():
        return None
    if first is None:
        first = warmup_length(steps.done()[~steps.in_window])
    bare = (np.arange(len(steps)) >= first) & ~steps.in_window
    if use is not None:
        bare[np.flatnonzero(bare)] = use(int(bare.sum()))
    if not bare.any():
        return None
    begun, ended = _window_marks(rows)[:2].tolist()
    stopping = float(rows["observer_ns"][rows["end_ns"] == ended].sum())
    outside = 1.0 - float(steps.duration[window].sum()) / max(ended - begun - stopping, 1.0)
    last = float(_window_marks(rows)[-1])
    following = int((steps.end <= last).sum()) + 1  # the first step lets go of the recorder
    return _from_steps(steps, window, bare, outside, following)


def window_steps(rows: Rows, steps: Steps) -> Bools:
    """The steps of the first window, the one without stacks."""
    marks = _window_marks(rows)
    if len(marks) < 2:
        return np.zeros(len(steps), bool)
    inside: Bools = (steps.end > marks[0]) & (steps.end <= marks[1])
    return inside


def _window_marks(rows: Rows) -> Rows:
    marks: Rows = rows["end_ns"][rows["kind"].astype(int) == RowKind.WINDOW]
    return marks


def calibration_of_run(
    records: RunRecords, use: Callable[[int], Bools] | None = None
) -> Calibration | None:
    """The calibration of a run folder."""
    return calibrate(records.rows, records.steps, records.run.warmup, use)


def _from_steps(
    steps: Steps, window: Bools, bare: Bools, outside: float, after: int
) -> Calibration:
    """`after`: the place of the first step in which the device's queue fills again."""
    factors, uncertainty, means, slowed = {}, {}, {}, {}
    bare_means, clocked = steps.host_means(bare), bare & steps.clocked
    if not clocked.any():
        clocked = steps.clocked & ~steps.in_window
    for phase in STEP_PHASES:
        without, within = steps.host[phase][clocked], steps.host[phase][window]
        usual, recorded = bare_means[phase], float(within.mean())
        means[phase], slowed[phase] = usual / 1e6, recorded / 1e6
        factors[phase] = usual / recorded if recorded > 0 else 1.0
        uncertainty[phase] = float(np.hypot(_relative_error(without), _relative_error(within)))
    free: dict[str, float] = {}
    if np.isfinite(steps.device["forward"]).any():
        # Copies to a device contain waiting, and so do launches into a full queue: copies go by
        # the other phases, and no phase counts as slower when bare.
        usual, recorded = (sum(table[p] for p in _COMPUTED) for table in (means, slowed))
        factors["h2d"] = usual / recorded if recorded > 0 else 1.0
        factors = {phase: min(1.0, factor) for phase, factor in factors.items()}
        if after + _FREE <= len(steps) and steps.clocked[after : after + _FREE].all():
            times = {phase: steps.host[phase][after : after + _FREE] for phase in _COMPUTED}
            free = {phase: float(np.median(own)) / 1e6 for phase, own in times.items()}
    done = np.sort(steps.done()[bare])
    odd = round(_ODD * len(done))
    return Calibration(
        factors=factors,
        uncertainty=uncertainty,
        bare_ms=means,
        window_ms=slowed,
        step_ms=steps.mean(bare) / 1e6,
        usual_ms=float(done[odd : len(done) - odd].mean()) / 1e6,
        steps=int(bare.sum()),
        window=int(window.sum()),
        outside=outside,
        free_ms=free,
        clocks=WindowClocks(steps.host["forward"][window], steps.host["backward"][window]),
        data_wait_low_ms=float(np.percentile(steps.host["data_wait"][bare], 10)) / 1e6,
    )


def _relative_error(values: Floats) -> float:
    """The relative error of a mean step time, from means of consecutive blocks, since noise comes
    in bursts; for few steps, from the steps themselves."""
    mean = float(values.mean())
    if len(values) < 2 or mean <= 0:
        return 0.0
    blocks = values
    if len(values) >= 2 * _BLOCKS:
        blocks = np.array([part.mean() for part in np.array_split(values, _BLOCKS)])
    return float(blocks.std(ddof=1) / np.sqrt(len(blocks)) / mean)
