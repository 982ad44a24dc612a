"""Changes to a window's tasks: what a fix removes, shrinks, merges or reorders.

Each function returns a `Change`: tasks in, new tasks out. `model.replay(a, b)` applies `a`, then
`b`. Costs that no recording contains (launching a graph, handing over a batch) are priors, given as
arguments with defaults in `tasks`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps

import numpy as np

from stepscope.analyze.replay.tasks import (
    FUSED_STEP_NS,
    GRAPH_LAUNCH_NS,
    LoaderQueue,
    Tasks,
    TaskSelector,
    WaitKind,
    select_copies,
    select_host,
    select_kernels,
)
from stepscope.analyze.timeline.names import CopyDirection
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column

Change = Callable[[Tasks], Tasks]
Factor = float | Callable[[Tasks], Column]
"""One for all, or a factor for each of `tasks.work` (`work.event` says which event it was)."""
_POINTWISE = ("pointwise", "random", "softmax", "normalisation", "layout change", "loss")


def _edited(tasks: Tasks, **columns: Mapping[str, Column]) -> Tasks:
    """The same tasks with other columns of host, work or waits."""
    return replace(tasks, **{k: replace(getattr(tasks, k), **v) for k, v in columns.items()})


def scale_kernels(select: TaskSelector, factor: Factor) -> Change:
    """The selected kernels take `factor` times as long: other precision, other algorithm.

    Communication is never scaled: its kernels wait for other ranks inside.
    """

    def change(tasks: Tasks) -> Tasks:
        work = tasks.work
        talks = select_kernels("communication")(tasks)
        times = factor(tasks) if callable(factor) else factor
        duration = np.where(select(tasks) & ~talks, work.duration * times, work.duration)
        return _edited(tasks, work={"duration": duration})

    return change


def scale_copies(direction: str | None, factor: float) -> Change:
    """Copies of one direction ("HtoD", "DtoH"; None: all) take `factor` times as long."""
    return scale_kernels(select_copies(direction), factor)


def overlap_copies() -> Change:
    """Batches are copied one ahead on a separate stream, in parallel to compute, by a prefetcher.

    They need pinned memory for that: combine with `unblock_copies`.
    """

    def change(tasks: Tasks) -> Tasks:
        work, ours = tasks.work, select_copies(CopyDirection.HTOD)(tasks)
        own = int(work.stream.max(initial=0)) + 1
        after = np.where(ours, NOTHING, work.after)
        after = np.where((after >= 0) & ours[after], NOTHING, after)
        stream = np.where(ours, own, work.stream)
        return _edited(tasks, work={"stream": stream, "after": after})

    return change


def merge_kernels(select: TaskSelector) -> Change:
    """Neighbours on a stream that are selected become one kernel, and their launches one.

    It takes as long as the longest of them (each read and wrote all of it once; together once). The
    host time of operators whose kernels were all merged into earlier ones disappears, including the
    gap before them.
    """

    def change(tasks: Tasks) -> Tasks:
        work, chain = tasks.work, tasks.host
        first = _first_of_run(tasks, select(tasks))
        merged = np.flatnonzero(first >= 0)
        others = merged[first[merged] != merged]
        duration, gone = work.duration.copy(), work.gone.copy()
        np.maximum.at(duration, first[others], work.duration[others])
        gone[others] = True
        stays = np.isin(chain.call, work.call[~gone]) | ~np.isin(chain.call, work.call[others])
        stays |= chain.call == NOTHING
        left = np.where(stays, chain.duration, 0.0)
        return _edited(tasks, work={"duration": duration, "gone": gone}, host={"duration": left})

    return change


def fuse_pointwise(*categories: str) -> Change:
    """Chains of pointwise kernels (and the like) become one each, as a compiler makes them."""
    return merge_kernels(select_kernels(*(categories or _POINTWISE)))


def _first_of_run(tasks: Tasks, chosen: Column) -> Column:
    """For each selected piece of work, the first of its run of neighbours; NOTHING for others.

    A run ends where the stream, step or phase changes, or the host waits in between.
    """
    work, waits = tasks.work, tasks.waits
    first = np.full(len(work), NOTHING, np.int64)
    waits_before = np.searchsorted(np.sort(waits.at[~waits.gone]), work.at, "left")
    rows = np.flatnonzero(~work.gone)
    rows = rows[np.argsort(work.stream[rows], kind="stable")]
    picked, same = chosen[rows], np.ones(len(rows), bool)
    same[:1] = False
    for column in (work.stream, work.step, work.phase, waits_before):
        same[1:] &= column[rows][1:] == column[rows][:-1]
    same[1:] &= picked[:-1]
    heads = np.maximum.accumulate(np.where(same, 0, np.arange(len(rows))))
    first[rows] = np.where(picked, rows[heads], NOTHING)
    return first


_WORDS = {
    WaitKind.ITEM: r"^(item|bool|float|int|index|_local_scalar_dense)$",
    WaitKind.TO_HOST: r"^(cpu|numpy|tolist|to_host|to\('cpu'\)|print)$",
    WaitKind.TO_DEVICE: r"^(to_device|copy|pageable copy|h2d)$",
    WaitKind.SHAPE: r"^(shape|nonzero|masked_select|unique|where|mask)$",
    WaitKind.SYNCHRONIZE: r"^(synchronize|Event\.synchronize|Stream\.synchronize)$",
    WaitKind.FREE: r"^(free|empty_cache)$",
    WaitKind.OTHER: r"^other$",
}
_COMPUTE = ("forward", "backward", "optimizer")


def wait_kind_of(word: str) -> WaitKind | None:
    """The WaitKind for a word of `show["syncs"]`, or None."""
    for kind, words in _WORDS.items():
        if word == kind.name.lower() or re.search(words, word):
            return kind
    return None


def drop_waits(*kinds: str | WaitKind, phase: str | None = None) -> Change:
    """Synchronisations go away: those of these kinds (`show["syncs"]`'s words; none: all).

    What the host did around the wait stays.
    """
    named = {k if isinstance(k, WaitKind) else wait_kind_of(k) for k in kinds}
    wanted = [int(kind) for kind in named if kind is not None]

    def change(tasks: Tasks) -> Tasks:
        waits = tasks.waits
        drop = np.isin(waits.what, wanted) if kinds else np.ones(len(waits), bool)
        if phase is not None:
            drop &= waits.phase == STEP_PHASES.index(phase)
        return _edited(tasks, waits={"gone": waits.gone | drop})

    return change


def unblock_copies(faster: float = 1.0) -> Change:
    """Copies to the device come from pinned memory and do not block the host (`non_blocking`).

    `faster`: how many times faster they then run (measured pinned over pageable rate).
    """

    drop, speed_up = drop_waits(WaitKind.TO_DEVICE), scale_copies(CopyDirection.HTOD, 1 / faster)
    return lambda tasks: speed_up(drop(tasks))


def remove_host(select: TaskSelector, share: float = 1.0) -> Change:
    """Remove this share of the selected host time (1: all of it); what it launches stays."""
    return scale_host(select, 1.0 - share)


def scale_host(select: TaskSelector, factor: float) -> Change:
    """The selected host time takes `factor` times as long."""

    def change(tasks: Tasks) -> Tasks:
        chain = tasks.host
        duration = np.where(select(tasks), chain.duration * factor, chain.duration)
        return _edited(tasks, host={"duration": duration})

    return change


def drop_host(name: str) -> Change:
    """Remove host time by name: a regular expression, also on the enclosing operator."""
    own, inside = select_host(name=name), select_host(operator=name)
    return remove_host(lambda tasks: own(tasks) | inside(tasks))


def drop_launch_cost(*phases: str, launch_ns: float = GRAPH_LAUNCH_NS, keep: float = 0.0) -> Change:
    """The host's part of these phases (forward, backward, optimizer) becomes one launch a step.

    As a CUDA graph makes it; `keep` is the share of host time that stays (compiled code still
    launches kernel by kernel). Work stays in order, and so do waits; a phase in which the host has
    to wait for a result's size stays as it is: no graph can be captured over that.
    """
    chosen = [STEP_PHASES.index(phase) for phase in phases or _COMPUTE]

    def change(tasks: Tasks) -> Tasks:
        chain, work, waits = tasks.host, tasks.work, tasks.waits
        size_waits = waits.phase[~waits.gone & (waits.what == WaitKind.SHAPE)]
        numbers = [number for number in chosen if number not in size_waits]
        ours = np.isin(chain.phase, numbers)
        duration = np.where(ours, chain.duration * keep, chain.duration)
        duration[_first_of_steps(chain.step, ours)] += launch_ns
        graph = work.graph | (np.isin(work.phase, numbers) if keep == 0 else False)
        return _edited(tasks, host={"duration": duration}, work={"graph": graph})

    return change


def _first_of_steps(steps: Column, chosen: Column) -> Column:
    """The first chosen row of each step that has one."""
    rows = np.flatnonzero(chosen)
    return rows[np.unique(steps[rows], return_index=True)[1]]


def _change_loader(change: Callable[[LoaderQueue], LoaderQueue]) -> Change:
    """Change the loader; nothing changes if none is known."""

    @wraps(change)
    def changed(tasks: Tasks) -> Tasks:
        loader = tasks.loader
        return tasks if loader is None else replace(tasks, loader=change(loader))

    return changed


def set_workers(count: int) -> Change:
    """This many worker processes make the batches; 0: the host does it itself."""
    return _change_loader(lambda loader: replace(loader, workers=count))


def keep_workers() -> Change:
    """Workers live from epoch to epoch."""
    return _change_loader(lambda loader: replace(loader, kept=True))


def scale_batch_time(factor: float) -> Change:
    """A batch takes `factor` times as long to make: cached samples, cheaper transforms."""
    return _change_loader(lambda loader: replace(loader, batch_ms=loader.batch_ms * factor))


def recycle_batch_memory() -> Change:
    """Workers hand batches over in reused memory."""
    return _change_loader(lambda loader: replace(loader, recycled=True))


def pin_batches() -> Change:
    """A thread takes batches over from workers and pins them."""
    return _change_loader(lambda loader: replace(loader, pinned=True))


def scale_phase(phase: str, factor: float) -> Change:
    """All of a phase takes `factor` times as long, on host and device.

    For "data_wait" that is making and taking batches.
    """
    number, on_host = STEP_PHASES.index(phase), scale_host(select_host(phase=phase), factor)

    def change(tasks: Tasks) -> Tasks:
        loader, work = tasks.loader, tasks.work
        if loader is not None and phase == "data_wait":
            made, taken = loader.batch_ms * factor, loader.hand_over_ms * factor
            tasks = replace(tasks, loader=replace(loader, batch_ms=made, hand_over_ms=taken))
        duration = np.where(work.phase == number, work.duration * factor, work.duration)
        return _edited(on_host(tasks), work={"duration": duration})

    return change


def fuse_optimizer(device_factor: float = 1.0, host_ns: float | None = None) -> Change:
    """The optimizer becomes one kernel, and its host time that of a few launches.

    `device_factor`: its time over that of the present kernels together (by bytes: the roofline).
    `host_ns`: the host's part of a step, a prior of `priors` where there is a device. On the CPU
    pass it: there the work itself is host time.
    """
    target = FUSED_STEP_NS if host_ns is None else host_ns

    def change(tasks: Tasks) -> Tasks:
        chain, work = tasks.host, tasks.work
        ours = select_kernels(phase="optimizer")(tasks)
        mine = select_host(phase="optimizer")(tasks)
        first = _first_of_steps(work.step, ours)
        of_steps = np.bincount(work.step[ours], work.duration[ours], tasks.steps)
        duration, gone = work.duration.copy(), work.gone | ours
        duration[first] = of_steps[work.step[first]] * device_factor
        gone[first] = False

        spent = np.bincount(chain.step[mine], chain.duration[mine], tasks.steps)
        share = np.minimum(1.0, target / np.maximum(spent, 1.0))
        if host_ns is None:
            fused = np.isin(np.arange(tasks.steps), work.step[ours])
            share = np.where(fused, share, 1.0)
        left = np.where(mine, chain.duration * share[chain.step], chain.duration)
        return _edited(tasks, host={"duration": left}, work={"duration": duration, "gone": gone})

    return change
