"""Changes of the device's work."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepscope.analyze.whatif.select import Select, copies, kernels
from stepscope.analyze.whatif.tasks import Tasks
from stepscope.record.timeline import NOTHING, Column

Factor = float | Callable[[Tasks], Column]
"""One for all, or a factor for each of `tasks.work` (`work.event` says which event it was)."""
_POINTWISE = ("pointwise", "random", "softmax", "normalisation", "layout change", "loss")


def scale_kernels(select: Select, factor: Factor) -> Callable[[Tasks], Tasks]:
    """The selected kernels take `factor` times as long: other precision, other algorithm.

    Communication is never scaled: its kernels wait for other ranks inside.
    """

    def change(tasks: Tasks) -> Tasks:
        work = tasks.work
        talks = kernels("communication")(tasks)
        times = factor(tasks) if callable(factor) else factor
        duration = np.where(select(tasks) & ~talks, work.duration * times, work.duration)
        return replace(tasks, work=replace(work, duration=duration))

    return change


def scale_copies(direction: str | None, factor: float) -> Callable[[Tasks], Tasks]:
    """Copies of one direction ("HtoD", "DtoH"; None: all) take `factor` times as long."""
    chosen = copies(direction)

    def change(tasks: Tasks) -> Tasks:
        work = tasks.work
        duration = np.where(chosen(tasks), work.duration * factor, work.duration)
        return replace(tasks, work=replace(work, duration=duration))

    return change


def overlap_copies(direction: str = "HtoD") -> Callable[[Tasks], Tasks]:
    """Copies run on a stream of their own, a batch ahead: beside compute, as a prefetcher does.

    They need pinned memory for that: combine with `unblock_copies`.
    """
    chosen = copies(direction)

    def change(tasks: Tasks) -> Tasks:
        work = tasks.work
        ours = chosen(tasks)
        own = int(work.stream.max(initial=0)) + 1
        after = np.where(ours, NOTHING, work.after)
        after = np.where((after >= 0) & ours[after], NOTHING, after)
        stream = np.where(ours, own, work.stream)
        return replace(tasks, work=replace(work, stream=stream, after=after))

    return change


def merge_kernels(select: Select, keep: Factor | None = None) -> Callable[[Tasks], Tasks]:
    """Neighbours on a stream that are selected become one kernel, and their launches one.

    It takes as long as the longest of them (each read and wrote all of it once; together once),
    or as `keep` says: a factor on the sum of their times. The host time of operators whose every
    kernel was merged into an earlier one goes away, the gap before them included.
    """

    def change(tasks: Tasks) -> Tasks:
        work, chain = tasks.work, tasks.host
        first = _first_of_run(tasks, select(tasks))
        merged = np.flatnonzero(first >= 0)
        others = merged[first[merged] != merged]
        duration = work.duration.copy()
        if keep is None:
            np.maximum.at(duration, first[others], work.duration[others])
        else:
            times = keep(tasks) if callable(keep) else np.full(len(work), keep)
            np.add.at(duration, first[others], work.duration[others])
            heads = np.unique(first[merged])
            duration[heads] *= times[heads]
        gone = work.gone.copy()
        gone[others] = True
        stays = np.isin(chain.call, work.call[~gone]) | ~np.isin(chain.call, work.call[others])
        stays |= chain.call == NOTHING
        return replace(
            tasks,
            work=replace(work, duration=duration, gone=gone),
            host=replace(chain, duration=np.where(stays, chain.duration, 0.0)),
        )

    return change


def fuse_pointwise(*categories: str) -> Callable[[Tasks], Tasks]:
    """Chains of pointwise kernels (and the like) become one each, as a compiler makes them."""
    return merge_kernels(kernels(*(categories or _POINTWISE)))


def _first_of_run(tasks: Tasks, chosen: Column) -> Column:
    """For each selected piece of work the first of its run of neighbours; NOTHING for others.

    A run ends where the stream, step or phase changes, or the host waits in between.
    """
    work, waits = tasks.work, tasks.waits
    first = np.full(len(work), NOTHING, np.int64)
    held = np.searchsorted(np.sort(waits.at[~waits.gone]), work.at, "left")
    for stream in np.unique(work.stream[chosen]).tolist():
        own = np.flatnonzero((work.stream == stream) & ~work.gone)
        picked = chosen[own]
        same = np.ones(len(own), bool)
        same[:1] = False
        for column in (work.step, work.phase, held):
            same[1:] &= column[own][1:] == column[own][:-1]
        same[1:] &= picked[:-1]
        heads = np.maximum.accumulate(np.where(same, 0, np.arange(len(own))))
        first[own] = np.where(picked, own[heads], NOTHING)
    return first
