"""What a replay works on: tasks as columns, selectors of them, and costs no recording contains.

Only durations and order are here, never when anything happened. Times are nanoseconds; of the
bare program where there is a calibration. A change makes new columns and leaves these alone;
positions never move, what is taken away is marked `gone` or lasts 0.

The priors are nanoseconds unless named, seen on an H200 under CUDA 13; a prediction that rests
on one says so.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from stepscope.analyze.timeline.attribution import CATEGORIES
from stepscope.analyze.timeline.names import read_copy_name
from stepscope.record.row_log import STEP_PHASES
from stepscope.record.timeline import Column, DeviceKind, distinct_values

GRAPH_LAUNCH_NS = 12_000.0  # the host's part of launching a CUDA graph
FUSED_STEP_NS = 250_000.0
"""The host's part of a fused optimizer's step: gathering its tensors and a few launches."""
LATENCY_NS = 1_500.0  # from the launching call's end until an idle device starts
BETWEEN_NS = 1_000.0
"""From the end of one piece of work until the next in its stream begins, both being queued."""
GRAPH_BETWEEN_NS = 600.0  # the same inside a CUDA graph
RELEASE_NS = 6_000.0  # from the end of the awaited work until the host continues
_HAND_OVER_MS = 0.3  # what taking a batch from a worker costs the host
WORKER_MS_PER_MB = 0.9
"""A worker's extra time per megabyte of a batch over the host's: fresh shared memory, and its own
heap. Measured on a virtual machine; others may be faster."""
HAND_OVER_MS_PER_MB = 0.35
"""The host's time per megabyte of a worker's batch: mapping, first touch, unmapping."""
RECYCLED_SHARE = 0.25
"""The share of both that remains with reused memory: benchmarks/worker_memory.py."""
FORK_MS, FORK_MS_PER_GB = 1.5, 22.0
"""The program's own time to fork a worker, and what each gigabyte of its memory adds."""
WORKER_LIFE_MS, WORKER_LIFE_MS_PER_GB = 22.0, 26.0
"""The processor time that a forked worker costs besides, whatever it makes: its beginning and end,
and copies of the pages that it and the program write to. Both with 1 to 8 workers of programs of
0.3 and 1.3 GB, by what Linux counts: benchmarks/worker_memory.py --starts."""
PINNING_MS_PER_MB = 0.05
"""The pinning thread's time per megabyte besides receiving it: a copy."""
BARE_HOST_SHARE = 0.45
"""Bare over recorded host time, where the clocks cannot tell for waiting at a full queue: between
0.35 and 0.55 in programs whose clocks could tell."""
MOST_HAND_OVER_MS = 1.0  # its maximum: a longer wait for a batch is a wait for its worker


class StretchKind(IntEnum):
    """What a stretch of the host chain was."""

    OPERATOR = 0
    ANNOTATION = 1  # inside a marked range, outside operators
    PYTHON = 2
    RUNTIME = 3  # a call into the device's runtime: launches, copies
    OVERHEAD = 4  # the profiler's own
    GAP = 5  # between events: interpreter, and whatever was not recorded


class WaitKind(IntEnum):
    """What a host wait was made by."""

    ITEM = 0  # .item(), float(), bool(), print of a scalar
    TO_HOST = 1  # .cpu(), .numpy(), .tolist(), print of a tensor
    TO_DEVICE = 2  # a blocking copy to the device
    SHAPE = 3  # nonzero, masks, unique: the result's size is needed
    SYNCHRONIZE = 4  # asked for by the program
    FREE = 5  # memory given back to the driver: empty_cache
    OTHER = 6


@dataclass(frozen=True, slots=True)
class HostTasks:
    """The host chain in order: threads that take turns (main, autograd) are one chain.

    Gaps between operators are in it; waiting for the device or for a batch is not.
    """

    duration: Column  # float64
    did: Column  # uint8, StretchKind
    phase: Column  # uint8, into STEP_PHASES
    name: Column  # int32, into Tasks.names: the innermost event's; NOTHING in gaps
    operator: Column  # int32, into Tasks.names: the innermost operator's, NOTHING outside
    call: Column  # int32, the outermost operator, a number shared with Work.call; NOTHING if none
    step: Column  # int32, 0 for the window's first

    def __len__(self) -> int:
        return len(self.duration)


@dataclass(frozen=True, slots=True)
class DeviceTasks:
    """Kernels, copies and memsets in launch order."""

    duration: Column  # float64
    at: Column  # int32, the host stretch that launched it; all work of a CUDA graph shares one
    stream: Column  # int32, any number: of one stream, in order
    overlaps: Column  # float64, ran beside the work before it on its stream for so long
    after: Column  # int32, work of another stream that must have ended; NOTHING
    kind: Column  # uint8, DeviceKind
    name: Column  # int32, into Tasks.names
    category: Column  # uint8, into CATEGORIES
    phase: Column  # uint8, into STEP_PHASES
    operator: Column  # int32, into Tasks.names: the innermost operator's
    call: Column  # int32, as HostTasks.call
    bytes: Column  # int64, of copies; NOTHING where not known
    event: Column  # int32, into the timeline's device events
    step: Column  # int32
    graph: Column  # bool: launched with a CUDA graph
    gone: Column  # bool: taken away by a change

    def __len__(self) -> int:
        return len(self.duration)


@dataclass(frozen=True, slots=True)
class WaitTasks:
    """Where the host stops until the device has caught up, in order."""

    at: Column  # int32, the host stretch at whose end the host waits
    what: Column  # uint8, WaitKind
    work: Column  # int32, the work waited for; NOTHING: all that was launched before
    stream: Column  # int32, where only one stream is waited for; NOTHING: the whole device
    phase: Column  # uint8, into STEP_PHASES
    place: Column  # int32, into Tasks.names: "file(line): function" of the user; NOTHING
    operator: Column  # int32, into Tasks.names
    step: Column  # int32
    gone: Column  # bool

    def __len__(self) -> int:
        return len(self.at)


@dataclass(frozen=True, slots=True)
class LoaderQueue:
    """The data loader as a queue: workers make batches, the host takes them in order."""

    batch_ms: float  # to make one batch in one process, as measured with `workers` of them
    workers: int  # 0: the host makes batches itself, inside `data_wait`
    cores: float = 1.0  # usable processor cores, shared by the workers and the host
    host_cores: float = 1.0
    """How many of these the host itself keeps busy: its threads, for a program on the CPU."""

    hand_over_ms: float = _HAND_OVER_MS
    """The host's cost of taking a batch from a worker; a prior if not measured."""
    late_ms: float = 0.0  # what the host waits for a batch beyond that, as they come unsteadily
    processor: float = 1.0
    """The share of making a batch that a core computes; the rest it waits, say for a disk."""
    batch_mb: float = 0.0
    """Megabytes of a batch, which has to get from a worker to the host; 0 where not known."""
    measured: int | None = None
    """With how many workers the times were measured; None: as many as `workers`."""
    recycled: bool = False
    """Whether workers hand batches over in reused memory, which was not measured."""
    pinned: bool = False
    """Whether a thread takes batches over and pins them, which was not measured."""
    epoch: float = 0.0
    """Batches until the loader's workers are started anew; 0 where that is not known."""
    memory_gb: float = 0.0
    """The program's own, which is mapped anew in each worker it forks."""
    import_ms: float = 0.0
    """What a worker imports that is not forked; 0 for forked ones."""
    kept: bool = False
    """Whether workers that were not measured are kept from epoch to epoch."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """A window ready for replay."""

    names: list[str]
    host: HostTasks
    work: DeviceTasks
    waits: WaitTasks
    fetches: Column
    """int32, host stretches at whose end a batch has been taken; empty without a loader."""
    steps: int
    loader: LoaderQueue | None = None
    """None where no loader is known: data_wait is then host time like any other. With one, the
    host chain's data_wait lasts 0, and what it costs follows from the loader."""
    queue: int = 1024  # launches that may wait on one stream before the host has to


TaskSelector = Callable[[Tasks], Column]  # A bool for each of `tasks.work` or of `tasks.host`


def select_kernels(
    *categories: str, phase: str | None = None, name: str | None = None, operator: str | None = None
) -> TaskSelector:
    """Kernels of these categories (none: of all), of a phase, whose own or whose operator's name
    a regular expression finds."""
    numbers = [CATEGORIES.index(category) for category in categories]

    def chosen(tasks: Tasks) -> Column:
        work = tasks.work
        mask: Column = (work.kind == DeviceKind.KERNEL) & ~work.gone
        if numbers:
            mask &= np.isin(work.category, numbers)
        return _narrowed(tasks, work, mask, phase, name, operator)

    return chosen


def select_copies(direction: str | None = None) -> TaskSelector:
    """Copies of a `CopyDirection`, or all."""

    def chosen(tasks: Tasks) -> Column:
        work = tasks.work
        mask: Column = (work.kind == DeviceKind.COPY) & ~work.gone
        if direction is not None:
            mask &= passing_names(
                tasks, work.name, lambda name: read_copy_name(name).direction == direction
            )
        return mask

    return chosen


def select_host(
    *did: StretchKind,
    phase: str | None = None,
    name: str | None = None,
    operator: str | None = None,
) -> TaskSelector:
    """Stretches of the host chain: of a kind (none: of all), of a phase, by name or operator."""

    def chosen(tasks: Tasks) -> Column:
        chain = tasks.host
        mask = np.isin(chain.did, did) if did else np.ones(len(chain), bool)
        return _narrowed(tasks, chain, mask, phase, name, operator)

    return chosen


def _narrowed(
    tasks: Tasks,
    of: HostTasks | DeviceTasks,
    mask: Column,
    phase: str | None,
    name: str | None,
    operator: str | None,
) -> Column:
    if phase is not None:
        mask &= of.phase == STEP_PHASES.index(phase)
    for column, pattern in ((of.name, name), (of.operator, operator)):
        if pattern is not None:
            mask &= passing_names(tasks, column, re.compile(pattern).search)
    return mask


def passing_names(tasks: Tasks, column: Column, test: Callable[[str], object]) -> Column:
    """Whether each entry's name passes; nameless ones do not."""
    passes = np.zeros(len(tasks.names) + 1, bool)
    for index in distinct_values(column[column >= 0]).tolist():
        passes[index] = bool(test(tasks.names[index]))
    return passes[column]
