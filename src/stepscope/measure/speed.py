"""The speed of a trial: steady wall time over steps.

Workers deliver in bursts, start with full buffers and restart every epoch; compilation and warm-up
affect only the first steps. So means are taken over whole worker cycles or whole epochs, after the
first buffers are drained, and the cost of starting an epoch is spread over its steps.
"""

from dataclasses import dataclass
from itertools import pairwise
from math import ceil

import numpy as np
import numpy.typing as npt

from stepscope.analyze.run.steps import Rows, Steps
from stepscope.record.facts import Facts, LoaderFact
from stepscope.record.row_log import RowKind
from stepscope.stats.series import Floats, cycle_length, warmup_length

_PREFETCH = 2  # batches a worker makes ahead by default


@dataclass(frozen=True, slots=True)
class LoaderTiming:
    """All in steps; 0 if no worker feeds them."""

    cycle: int = 0  # a round: each worker has delivered once
    buffer: int = 0  # steps that the workers' buffers feed
    epoch: int = 0  # steps per epoch by the loader's sizes; 0: unknown
    start_ms: float = 0.0  # what the start of an epoch took, if measured


def read_loader_timing(rows: Rows, facts: Facts, steps: int) -> LoaderTiming:
    """How the loader with the largest buffers feeds the steps; evaluation loaders do not count."""
    if not steps:
        return LoaderTiming()
    rows = rows[rows["end_ns"] > 0]
    feeding = _feeding(rows)
    loaders = [fact for fact in facts.all(LoaderFact) if fact.id in feeding]
    if not loaders:
        return LoaderTiming()
    training = rows["kind"].astype(int) != RowKind.EVAL
    if not rows["batches"][training].any():
        training = np.ones(len(rows), bool)
    per_step = max(1.0, float(rows["batches"][training].sum()) / steps)
    largest = max(loaders, key=lambda one: buffered_steps(one.num_workers, one.prefetch_factor))
    workers, samples, size = largest.num_workers, largest.samples, largest.batch_size
    batches = 0
    if samples and size:
        batches = samples // size if largest.drop_last else ceil(samples / size)
    return LoaderTiming(
        cycle=ceil(workers / per_step),
        buffer=buffered_steps(workers, largest.prefetch_factor, per_step),
        epoch=max(1, round(batches / per_step)) if batches else 0,
    )


def buffered_steps(workers: int, prefetch: int | None, batches_per_step: float = 1.0) -> int:
    """How many steps the buffers of these workers feed."""
    return ceil(workers * (prefetch or _PREFETCH) / max(batches_per_step, 1e-9))


def _feeding(rows: Rows) -> set[int]:
    """The loaders whose iterators are followed by something other than an evaluation."""
    kind = rows["kind"].astype(int)
    following = np.append(kind[1:], RowKind.END)
    chosen = (kind == RowKind.EPOCH) & ~np.isin(following, (RowKind.EVAL, RowKind.END))
    if not chosen.any():  # an inference program's calls all look like evaluations
        chosen = kind == RowKind.EPOCH
    return {int(who) for who in rows["who"][chosen]}


Places = npt.NDArray[np.intp]

FEWEST_STEADY = 8  # fewer steady steps say nothing about speed
_ROUNDS = 2  # rounds of full buffers: a loader half as fast as the step drains them in this many
FEWEST, MOST = 24, 400
_EPOCHS = 3  # epochs: the first is left out, and two more show what their starts take
_SLIGHT = 0.005  # of an epoch: shorter starts do not matter
_LEAST_PACE = 0.1  # of a step's time, however much of it waits
_DEAR = 4.5  # times the wanted seconds, at most, to include an epoch's start


@dataclass(frozen=True, slots=True)
class Speed:
    """`step_ms` are the steady steps, from the step of index `first` on; their mean is the speed.
    Fewer than FEWEST_STEADY of them say nothing. `samples_per_step` is None if nothing counts
    samples."""

    step_ms: tuple[float, ...]
    samples_per_step: float | None
    first: int


def steady_speed(steps: Steps, timing: LoaderTiming) -> Speed:
    """The steady steps of a run."""
    if not len(steps):
        return Speed((), None, 0)
    times = steps.done() / 1e6
    usual = ~steps.in_window
    settled = warmup_length(times[usual])
    # Steps until nothing more was compiled, if that settled in time.
    compiling = np.flatnonzero(steps.compiling[: len(steps) // 2] > 0)
    compiled = int(compiling[-1]) + 1 if compiling.size else 0
    first = max(settled, compiled + _ROUNDS * timing.buffer)
    starts = np.flatnonzero(steps.epoch_start > 0)
    starts = starts[starts > 0]
    epochs = _whole_epochs(starts, settled, len(times) - first)
    if epochs is not None and usual.all():
        first, end = epochs
        series = times[first:end] + _spread(steps, starts, end)[first:end]
        samples = steps.samples[first:end]
    else:
        chosen = np.flatnonzero(usual & (np.arange(len(times)) >= first))
        # Whole rounds of workers, plus each step's share of epoch starts.
        period = cycle_length(times[chosen])
        period = max(1, timing.cycle) if period == 1 else period
        whole = len(chosen) // period * period
        chosen = chosen[:whole] if whole >= min(FEWEST_STEADY, len(chosen)) else chosen
        series = times[chosen] + spread_start_ms(steps)
        samples = steps.samples[chosen]
    mean = float(samples.mean()) if samples.size and samples.any() else None
    return Speed(tuple(float(ms) for ms in series), mean, first)


def spread_start_ms(steps: Steps) -> float:
    """What starting a later epoch took, spread over the steps of one; 0 where none began."""
    starts = np.flatnonzero(steps.epoch_start > 0)
    starts = starts[starts > 0]
    if not len(starts):
        return 0.0
    length = float(np.median(np.diff(starts, prepend=0)))
    return float(steps.epoch_start[starts].mean()) / 1e6 / length


def _whole_epochs(starts: Places, settled: int, left: int) -> tuple[int, int] | None:
    """From the first epoch start to the last; None if they span too little. The workers' first
    buffers count, since every epoch has them. `left` is how many steps there would be otherwise."""
    later = starts[starts >= settled]
    if len(later) < 2:
        return None
    first, end = int(later[0]), int(later[-1])
    return (first, end) if end - first >= max(FEWEST_STEADY, left / 2) else None


def _spread(steps: Steps, starts: Places, end: int) -> Floats:
    """Each epoch's start-up time spread over its steps: ms for every step up to `end`. A start is
    not an unsteady step."""
    found = np.zeros(len(steps))
    for begin, after in pairwise([*starts[starts < end], end]):
        found[begin:after] = steps.epoch_start[begin] / 1e6 / (after - begin)
    return found


def trial_steps(
    scouted: Speed,
    timing: LoaderTiming,
    made: int | None = None,
    buffer: int = 0,
    waiting: float = 0.0,
    target_s: float = 2.0,
) -> int:
    """How many steps a trial should make, from the scout run.

    Enough for `target_s` seconds at its pace, for four rounds of full buffers (`buffer`: in steps,
    for the most workers to be tried), and for epoch starts if epochs are short and starts take
    time. `waiting`: the share of a step that waits for data, which workers can remove. `made`: the
    program's total steps if it ended before the limit.
    """
    wanted = [FEWEST, 2 * _ROUNDS * max(timing.buffer, buffer)]
    if scouted.step_ms:
        each_s = float(np.mean(scouted.step_ms)) / 1e3
        wanted.append(scouted.first + round(target_s / each_s))
        dear = timing.start_ms > _SLIGHT * timing.epoch * each_s * 1e3
        if buffer or timing.buffer or dear:
            # Until whole epochs have passed, or at least one more has begun.
            epoch, pace_s = timing.epoch, each_s * max(1 - waiting, _LEAST_PACE)
            choices = (_EPOCHS * epoch + 1, epoch + FEWEST_STEADY + 1) if epoch else ()
            affordable = min(MOST, _DEAR * target_s / pace_s)
            wanted.append(next((steps for steps in choices if steps <= affordable), 0))
    return min(MOST if made is None else min(MOST, made), max(wanted))
