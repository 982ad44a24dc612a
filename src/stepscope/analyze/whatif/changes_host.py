"""Changes of what the host does and waits for."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from stepscope.analyze.whatif.priors import GRAPH_LAUNCH_NS
from stepscope.analyze.whatif.select import Select, copies, host
from stepscope.analyze.whatif.tasks import Did, Tasks, Waited
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import NOTHING, Column

_WORDS = {
    Waited.ITEM: r"^(item|bool|float|int|index|_local_scalar_dense)$",
    Waited.TO_HOST: r"^(cpu|numpy|tolist|to_host|to\('cpu'\)|print)$",
    Waited.TO_DEVICE: r"^(to_device|copy|pageable copy|h2d)$",
    Waited.SHAPE: r"^(shape|nonzero|masked_select|unique|where|mask)$",
    Waited.SYNCHRONIZE: r"^(synchronize|Event\.synchronize|Stream\.synchronize)$",
    Waited.FREE: r"^(free|empty_cache)$",
    Waited.OTHER: r"^other$",
}
_COMPUTE = ("forward", "backward", "optimizer")


def waited_kind(word: str) -> Waited | None:
    """What a word of `show["syncs"]` (or of `Waited`) stands for in a window; None if nothing."""
    for kind, words in _WORDS.items():
        if word == kind.name.lower() or re.search(words, word):
            return kind
    return None


def drop_waits(
    *kinds: str | Waited, places: Iterable[str] | None = None, phase: str | None = None
) -> Callable[[Tasks], Tasks]:
    """Synchronisations go away: those of these kinds (`show["syncs"]`'s words; none: all).

    `places` keeps it to lines ("file.py(12)", as text inside a frame's name) where the recording
    knows lines, which only one with stacks does. What the host did around the wait stays.
    """
    asked = {k if isinstance(k, Waited) else waited_kind(k) for k in kinds}
    wanted = [int(kind) for kind in asked if kind is not None]
    lines = None if places is None else tuple(places)

    def change(tasks: Tasks) -> Tasks:
        waits = tasks.waits
        drop = np.isin(waits.what, wanted) if kinds else np.ones(len(waits), bool)
        if phase is not None:
            drop &= waits.phase == STEP_PHASES.index(phase)
        if lines is not None:
            drop &= (waits.place == NOTHING) | _at_lines(tasks, waits.place, lines)
        return replace(tasks, waits=replace(waits, gone=waits.gone | drop))

    return change


def unblock_copies(faster: float = 1.0) -> Callable[[Tasks], Tasks]:
    """Copies to the device come from pinned memory and do not block the host (`non_blocking`).

    `faster`: how many times faster they then run (measured pinned over pageable rate).
    """

    def change(tasks: Tasks) -> Tasks:
        waits, work = tasks.waits, tasks.work
        gone = waits.gone | (waits.what == Waited.TO_DEVICE)
        ours = copies("(?i)HtoD|Host ?-> ?Device")(tasks)
        duration = np.where(ours, work.duration / faster, work.duration)
        return replace(
            tasks, waits=replace(waits, gone=gone), work=replace(work, duration=duration)
        )

    return change


def remove_host(select: Select, share: float = 1.0) -> Callable[[Tasks], Tasks]:
    """So much of the selected host time goes away (1: all of it); what it launches stays."""
    return scale_host(select, 1.0 - share)


def scale_host(select: Select, factor: float) -> Callable[[Tasks], Tasks]:
    """The selected host time takes `factor` times as long."""

    def change(tasks: Tasks) -> Tasks:
        chain = tasks.host
        duration = np.where(select(tasks), chain.duration * factor, chain.duration)
        return replace(tasks, host=replace(chain, duration=duration))

    return change


def drop_host(
    name: str | None = None, *did: Did, phase: str | None = None
) -> Callable[[Tasks], Tasks]:
    """Host time goes away by name (a regular expression, also of the operator around) or kind."""

    def chosen(tasks: Tasks) -> Column:
        if name is None:
            return host(*did, phase=phase)(tasks)
        by_name, by_operator = (
            host(*did, phase=phase, name=name),
            host(*did, phase=phase, operator=name),
        )
        mask: Column = by_name(tasks) | by_operator(tasks)
        return mask

    return remove_host(chosen)


def no_launch_cost(
    *phases: str, launch_ns: float = GRAPH_LAUNCH_NS, keep: float = 0.0
) -> Callable[[Tasks], Tasks]:
    """The host's part of these phases (forward, backward, optimizer) becomes one launch a step.

    As a CUDA graph makes it; `keep` is the share of host time that stays (compiled code still
    launches kernel by kernel). Work stays in order, and so do waits; a phase in which the host has
    to wait for a result's size stays as it is: no graph can be captured over that.
    """
    asked = [STEP_PHASES.index(phase) for phase in phases or _COMPUTE]

    def change(tasks: Tasks) -> Tasks:
        chain, work, waits = tasks.host, tasks.work, tasks.waits
        held = waits.phase[~waits.gone & (waits.what == Waited.SHAPE)]
        numbers = [number for number in asked if number not in held]
        ours = np.isin(chain.phase, numbers)
        duration = np.where(ours, chain.duration * keep, chain.duration)
        for step in range(tasks.steps):
            launch = np.flatnonzero(ours & (chain.step == step))[:1]
            duration[launch] += launch_ns
        graph = work.graph | (np.isin(work.phase, numbers) if keep == 0 else False)
        return replace(
            tasks, host=replace(chain, duration=duration), work=replace(work, graph=graph)
        )

    return change


def _at_lines(tasks: Tasks, places: Column, lines: tuple[str, ...]) -> Column:
    passes = np.zeros(len(tasks.names) + 1, bool)
    for index in np.unique(places[places >= 0]).tolist():
        passes[index] = any(line in tasks.names[index] for line in lines)
    return passes[places]
