"""The timeline: what a profiler recorded, as typed columns, whichever tool it was.

Times are int64 nanoseconds since `Timeline.origin_ns`. Names, shapes and the like are interned:
a column holds an index into a list of the Timeline, and -1 where there is nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import wraps
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]
UInt8 = Annotated[Column, np.uint8]
Int16 = Annotated[Column, np.int16]
Int32 = Annotated[Column, np.int32]
Int64 = Annotated[Column, np.int64]
T = TypeVar("T")
NOTHING = -1


class HostKind(IntEnum):
    """What a stretch of a host thread was."""

    OPERATOR = 0  # aten:: and other dispatched operators, autograd's nodes
    ANNOTATION = 1  # record_function, NVTX ranges, ProfilerStep#, Optimizer.step#
    PYTHON = 2  # Python functions and modules, where stacks were recorded
    RUNTIME = 3  # calls into CUDA's or HIP's runtime or driver
    OVERHEAD = 4  # the profiler's own work


class DeviceKind(IntEnum):
    """What a stretch of a device stream was."""

    KERNEL = 0
    COPY = 1
    SET = 2  # memset


class _Spans:
    """Events with a start and a duration."""

    __slots__ = ()
    start: Column
    duration: Column

    def __len__(self) -> int:
        return len(self.start)

    @property
    def end(self) -> Column:
        return self.start + self.duration


@dataclass(frozen=True, slots=True)
class HostEvents(_Spans):
    """Ordered by start; if two start together on a thread, the longer comes first."""

    kind: UInt8  # HostKind
    name: Int32  # into Timeline.names
    start: Int64
    duration: Int64
    thread: Int32  # into Timeline.threads
    correlation: Int64  # of runtime calls: the same number as the work they launched
    external: Int64  # the profiler's id of an operator
    sequence: Int64  # autograd's number that joins an operator to its backward
    shapes: Int32  # into Timeline.shapes
    collective: Int32  # into Timeline.collectives
    parent: Int32  # the event around this one on its thread, as an index into these columns


@dataclass(frozen=True, slots=True)
class DeviceEvents(_Spans):
    """Ordered by start."""

    kind: UInt8  # DeviceKind
    name: Int32  # into Timeline.names
    start: Int64
    duration: Int64
    stream: Int32  # into Timeline.streams
    correlation: Int64
    external: Int64
    bytes: Int64  # moved or set
    geometry: Int32  # into Timeline.geometries
    collective: Int32  # into Timeline.collectives
    graph: Int64  # the CUDA graph's id or node where the work came from one
    launch: Int32  # the runtime call that launched it, as an index into the host events


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Allocations (bytes > 0) and releases (bytes < 0) in order of time."""

    time: Int64
    device: Int16  # NOTHING for host memory
    address: Int64
    bytes: Int64
    allocated: Int64  # total allocated after this, NOTHING if not recorded
    reserved: Int64  # total the allocator holds, likewise
    thread: Int32  # into Timeline.threads

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True, slots=True)
class SyncEvents(_Spans):
    """Synchronisations seen by the device's tracer (category cuda_sync); often empty.

    They are not work: a waiting stream is idle.
    """

    name: Int32  # into Timeline.names
    start: Int64
    duration: Int64
    stream: Int32  # into Timeline.streams, NOTHING for a whole context
    correlation: Int64
    waits_for: Int32  # into Timeline.streams: whose event was waited for


@dataclass(frozen=True, slots=True)
class Thread:
    """A host thread. Ids are text, since some tools write names there."""

    pid: str
    tid: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue of one device."""

    device: int
    stream: str


@dataclass(frozen=True, slots=True)
class Shapes:
    """An operator's inputs, each field JSON text as recorded (b"" if it was not)."""

    dims: bytes = b""
    types: bytes = b""
    strides: bytes = b""
    values: bytes = b""  # "Concrete Inputs": scalars, lists of scalars


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a kernel was launched; None: not recorded."""

    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    registers: int | None = None  # per thread
    shared_bytes: int | None = None  # per block
    blocks_per_sm: float | None = None
    warps_per_sm: float | None = None
    occupancy: float | None = None  # 0 to 1, the profiler's estimate


@dataclass(frozen=True, slots=True)
class Collective:
    """What was communicated; None: not recorded."""

    name: str
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    group: str | None = None
    ranks: str | None = None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device as the recording describes it; None: not described."""

    index: int
    name: str | None = None
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None
    multiprocessors: int | None = None
    warp_size: int | None = None
    max_threads_per_sm: int | None = None


@dataclass(slots=True)
class Quality:
    """How far to trust a recording: what was read, repaired and left out."""

    read: int = 0  # events in the file
    kept: int = 0  # events that are in the timeline
    repaired: dict[str, int] = field(default_factory=dict)  # what was repaired -> how often
    dropped: dict[str, int] = field(default_factory=dict)  # why left out -> how often
    ignored: dict[str, int] = field(default_factory=dict)  # carries no time (arrows, labels)
    truncated: bool = False
    notes: list[str] = field(default_factory=list)  # a sentence each


@dataclass(frozen=True, slots=True)
class Timeline:
    """One process's (rank's) recording."""

    source: str  # the file's name, as the user gave it
    tool: str  # what recorded it: "kineto", "nsys"
    origin_ns: int  # what to add to a time for the recording's own clock
    names: list[str]
    threads: list[Thread]
    streams: list[Stream]
    shapes: list[Shapes]
    geometries: list[Geometry]
    collectives: list[Collective]
    devices: list[DeviceInfo]
    host: HostEvents
    device: DeviceEvents
    memory: MemoryEvents
    syncs: SyncEvents
    span: tuple[int, int]  # from the first to the last thing recorded
    rank: int | None
    world_size: int | None
    backend: str | None  # of communication: nccl, gloo
    quality: Quality
    derived: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results that analyses cached, by function: see `once_per_timeline`."""

    def name_of(self, index: int) -> str:
        return self.names[index] if index >= 0 else ""

    def host_names(self, events: Column) -> Column:
        """Names of host events, as indices into `names`; NOTHING for an event that is NOTHING."""
        return np.append(self.host.name, np.int32(NOTHING))[events]

    def named(self, *prefixes: str) -> Column:
        """For each of `names`, whether it starts with one of the prefixes: a mask to index by a
        column."""
        return np.fromiter((n.startswith(prefixes) for n in self.names), bool, len(self.names))


def once_per_timeline(compute: Callable[[Timeline], T]) -> Callable[[Timeline], T]:
    """Cache a function's result with its timeline, for the analyses that share it."""
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def known(timeline: Timeline) -> T:
        if key not in timeline.derived:
            timeline.derived[key] = compute(timeline)
        found: T = timeline.derived[key]
        return found

    return known


def column_types(table: type) -> dict[str, type[np.generic]]:
    """The dtype of each column of HostEvents, DeviceEvents, MemoryEvents or SyncEvents."""
    return {name: hint.__metadata__[0] for name, hint in table.__annotations__.items()}


def make_events(table: type[T], **columns: Any) -> T:
    """A table from sequences, in the columns' types; columns left out are all NOTHING."""
    size = len(next(iter(columns.values()), ()))
    return table(
        **{
            name: np.asarray(columns[name], dtype)
            if name in columns
            else np.full(size, NOTHING if dtype is not np.uint8 else 0, dtype)
            for name, dtype in column_types(table).items()
        }
    )


def distinct_values(column: Column) -> Column:
    """Its values in order, each once: as np.unique, which first imports masked arrays."""
    ordered = np.sort(column)
    first: Column = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    found: Column = ordered[first]
    return found


def percentiles(column: Column, *wanted: float) -> list[float]:
    """Exactly as np.percentile, which imports masked arrays too."""
    ordered = np.sort(column)
    at = np.array(wanted) / 100 * (len(ordered) - 1)
    below = np.floor(at).astype(np.intp)
    above = np.minimum(below + 1, len(ordered) - 1)
    low, high, part = ordered[below], ordered[above], at - below
    step = high - low
    found: list[float] = np.where(part < 0.5, low + step * part, high - step * (1 - part)).tolist()
    return found


_LARGEST_CODE = 2**61  # combined codes of rows fit in 64 bits below it


def distinct_rows(columns: Sequence[Column]) -> tuple[list[tuple[int, ...]], Column]:
    """The distinct rows of integer columns, and for each row its index among them."""
    if not len(columns[0]):
        return [], np.empty(0, np.int32)
    code, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        low, span = int(column.min()), int(column.max()) - int(column.min()) + 1
        if size * span >= _LARGEST_CODE:  # only then are the codes themselves too large to combine
            column = np.unique(column, return_inverse=True)[1]
            code = np.unique(code, return_inverse=True)[1]
            low, span, size = 0, int(column.max()) + 1, int(code.max()) + 1
        code = code * span + (column - low)
        size *= span
    _, where, inverse = np.unique(code, return_index=True, return_inverse=True)
    rows = zip(*(column[where].tolist() for column in columns), strict=True)
    return list(rows), inverse.astype(np.int32)


def map_rows(columns: Sequence[Column], value: Callable[..., int], dtype: Any = np.int32) -> Column:
    """A column computed by calling `value` once per distinct row."""
    rows, which = distinct_rows(columns)
    return np.array([value(*row) for row in rows], dtype)[which]
