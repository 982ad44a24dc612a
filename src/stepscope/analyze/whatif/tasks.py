"""What a replay works on: the window's host chain, device work, waits and batches, as columns.

Only durations and order are here, never when anything happened. Times are nanoseconds; of the bare
program where there is a calibration. A change makes new columns and leaves these alone; positions
never move, what is taken away is marked `gone` or lasts 0.
"""

from dataclasses import dataclass
from enum import IntEnum

from stepscope.analyze.whatif.priors import HAND_OVER_MS
from stepscope.record.timeline import Column


class Did(IntEnum):
    """What a stretch of the host chain was."""

    OPERATOR = 0
    ANNOTATION = 1  # inside a marked range, outside operators
    PYTHON = 2
    RUNTIME = 3  # a call into the device's runtime: launches, copies
    OVERHEAD = 4  # the profiler's own
    GAP = 5  # between events: interpreter, and whatever was not recorded


class Waited(IntEnum):
    """What a host wait was made by."""

    ITEM = 0  # .item(), float(), bool(), print of a scalar
    TO_HOST = 1  # .cpu(), .numpy(), .tolist(), print of a tensor
    TO_DEVICE = 2  # a blocking copy to the device
    SHAPE = 3  # nonzero, masks, unique: the result's size is needed
    SYNCHRONIZE = 4  # asked for by the program
    FREE = 5  # memory given back to the driver: empty_cache
    OTHER = 6


@dataclass(frozen=True, slots=True)
class Host:
    """The host chain in order: threads that take turns (main, autograd) are one chain.

    Gaps between operators are in it; waiting for the device or for a batch is not.
    """

    duration: Column  # float64
    did: Column  # uint8, Did
    phase: Column  # uint8, into STEP_PHASES
    name: Column  # int32, into Tasks.names: the innermost event's; NOTHING in gaps
    operator: Column  # int32, into Tasks.names: the innermost operator's, NOTHING outside
    call: Column  # int32, the outermost operator, a number shared with Work.call; NOTHING if none
    step: Column  # int32, 0 for the window's first

    def __len__(self) -> int:
        return len(self.duration)


@dataclass(frozen=True, slots=True)
class Work:
    """Kernels, copies and memsets in the order they were launched."""

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
    call: Column  # int32, as Host.call
    bytes: Column  # int64, of copies; NOTHING where not known
    event: Column  # int32, into the timeline's device events
    step: Column  # int32
    graph: Column  # bool: launched with a CUDA graph
    gone: Column  # bool: taken away by a change

    def __len__(self) -> int:
        return len(self.duration)


@dataclass(frozen=True, slots=True)
class Waits:
    """Where the host stands still until the device has caught up, in order."""

    at: Column  # int32, the host stretch at whose end the host waits
    what: Column  # uint8, Waited
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
class Loader:
    """The data loader as a queue: workers make batches, the host takes them in order."""

    batch_ms: float
    """To make one batch in one process, as measured with `workers` of them."""
    workers: int
    """0: the host makes batches itself, inside `data_wait`."""
    cores: float = 1.0
    """Usable processor cores, shared by the workers and the host."""
    host_cores: float = 1.0
    """Of these, what the host itself keeps busy: its threads, for a program on the CPU."""
    prefetch: int = 2
    """Batches asked for ahead, per worker."""
    hand_over_ms: float = HAND_OVER_MS
    """What taking a batch from a worker costs the host; a prior where not measured."""
    late_ms: float = 0.0
    """What the host waits for a batch beyond that, as they come unsteadily."""
    processor: float = 1.0
    """Of making a batch: the share that a core works on it; the rest it waits, for a disk say."""
    batch_mb: float = 0.0
    """Megabytes of a batch, which has to get from a worker to the host; 0 where not known."""
    measured: int | None = None
    """With how many workers the times were measured; None: as many as `workers`."""
    recycled: bool = False
    """Whether workers hand batches over in memory that was used before, which was not measured."""
    pinned: bool = False
    """Whether a thread takes batches over and pins them, which was not measured."""


@dataclass(frozen=True, slots=True)
class Tasks:
    """A window ready for replay."""

    names: list[str]
    host: Host
    work: Work
    waits: Waits
    fetches: Column
    """int32, host stretches at whose end a batch has been taken; empty without a loader."""
    steps: int
    loader: Loader | None = None
    """None where no loader is known: data_wait is then host time like any other. With one, the
    host chain's data_wait lasts 0, and what it costs follows from the loader."""
    queue: int = 1024
    """Launches that may wait on one stream before the host has to."""
