"""Kineto's events as msgspec decodes them, their categories, and their times in nanoseconds.

Two decoders share the layout. FAST reads times as numbers; EXACT keeps their text, for
recordings whose microseconds are too large for a float to hold the nanoseconds.
"""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

import numpy as np
from msgspec import Raw, Struct, defstruct, field
from msgspec.json import Decoder

from stepscope.record.timeline import Column, DeviceKind, HostKind

Time = TypeVar("Time")
ABSENT = Raw()
NO_DURATION = float("nan")
_FLOAT_EXACT_BELOW = 2.0**43  # microseconds: beyond, half a unit in the last place exceeds 0.5 ns


class Args(Struct, gc=False, frozen=True, kw_only=True):
    """What is known about an operator, a runtime call or a piece of device work."""

    external: int = field(default=-1, name="External id")
    external_old: int = field(default=-1, name="external id")
    sequence: int = field(default=-1, name="Sequence number")
    values: Raw = field(default=ABSENT, name="Concrete Inputs")
    types: Raw = field(default=ABSENT, name="Input type")
    strides: Raw = field(default=ABSENT, name="Input Strides")
    dims: Raw = field(default=ABSENT, name="Input Dims")
    dims_old: Raw = field(default=ABSENT, name="Input dims")
    device: int | str | None = None
    stream: int | str | None = None
    correlation: int = -1
    bytes: int | str = -1
    registers: int | None = field(default=None, name="registers per thread")
    shared: int | None = field(default=None, name="shared memory")
    blocks_per_sm: float | None = field(default=None, name="blocks per SM")
    warps_per_sm: float | None = field(default=None, name="warps per SM")
    grid: Raw = ABSENT
    block: Raw = ABSENT
    occupancy: float | None = field(default=None, name="est. achieved occupancy %")
    graph: int = field(default=-1, name="graph id")
    node: int = field(default=-1, name="graph node id")
    collective: str | None = field(default=None, name="Collective name")
    dtype: str | None = None
    in_elements: int | None = field(default=None, name="In msg nelems")
    out_elements: int | None = field(default=None, name="Out msg nelems")
    group_size: int | None = field(default=None, name="Group size")
    group: int | str | None = field(default=None, name="Process Group Name")
    ranks: Raw = field(default=ABSENT, name="Process Group Ranks")
    waits_for: int | str | None = field(default=None, name="wait_on_stream")


class MemoryArgs(Struct, gc=False, frozen=True, kw_only=True):
    """An allocation or a release; `bytes` is None on other instants."""

    reserved: int = field(default=-1, name="Total Reserved")
    allocated: int = field(default=-1, name="Total Allocated")
    bytes: int | str | None = field(default=None, name="Bytes")
    device: int = field(default=-1, name="Device Id")
    device_type: int = field(default=0, name="Device Type")
    address: int = field(default=-1, name="Addr")


class LabelArgs(Struct, gc=False, frozen=True, kw_only=True):
    """The value of a label."""

    name: str | int | None = None


NO_ARGS, NO_MEMORY, NO_LABEL = Args(), MemoryArgs(), LabelArgs()


class End(Struct, Generic[Time], gc=False, tag_field="ph", tag="E", kw_only=True):
    """The second half of a span written in two: ends what began last on its thread."""

    pid: int | str = ""
    tid: int | str = ""
    ts: Time


class Begin(End[Time], Generic[Time], gc=False, tag_field="ph", tag="B", kw_only=True):
    """The first half."""

    cat: str = ""
    name: str = ""


class Span(Begin[Time], Generic[Time], gc=False, tag_field="ph", tag="X", kw_only=True):
    """An event with a start and a duration (NaN where it is missing), in microseconds."""

    dur: float = NO_DURATION
    args: Args = NO_ARGS


class Instant(End[Time], Generic[Time], gc=False, tag_field="ph", tag="i", kw_only=True):
    """A moment: memory events are the ones with bytes."""

    args: MemoryArgs = NO_MEMORY


class Label(Struct, gc=False, tag_field="ph", tag="M", kw_only=True):
    """The name of a process or a thread."""

    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    args: LabelArgs = NO_LABEL


SKIPPED = {
    "stf": "arrows",
    "I": "marks",
    "C": "counters",
    "bneSTpF": "asynchronous spans",
    "NODPRcvV()": "events of other kinds",
}
"""Phases that carry no time of their own, and what to call them."""

_TIMELESS: dict[str, type[Struct]] = {
    phase: defstruct(f"Skipped{ord(phase)}", [], tag_field="ph", tag=phase, gc=False)
    for phase in "".join(SKIPPED)
}
BY_PHASE: dict[str, type[Struct]] = _TIMELESS | {
    "M": Label,
    "X": Span,
    "B": Begin,
    "E": End,
    "i": Instant,
}
IGNORED_REASONS: dict[type, str] = {
    Label: "labels",
    **{_TIMELESS[phase]: reason for phases, reason in SKIPPED.items() for phase in phases},
}
"""Why events of a type are not in the timeline."""


def _decoder(time: Any, *, strict: bool) -> Decoder[list[Any]]:
    kinds: list[Any] = [Span[time], Begin[time], End[time], Instant[time], *IGNORED_REASONS]
    return Decoder(list[reduce(or_, kinds)], strict=strict)  # type: ignore[misc]


FAST = _decoder(int | float, strict=True)
EXACT = _decoder(Raw, strict=True)
LAX = {FAST: _decoder(int | float, strict=False), EXACT: _decoder(Raw, strict=False)}
"""The same, with numbers written as text taken for numbers."""


FIRST_DEVICE_CODE = 16  # codes from here: DEVICE + DeviceKind; below: HostKind
SYNC_CODE = 32
IGNORED_CODE = 64

_CATEGORIES: dict[int, str] = {
    HostKind.OPERATOR: "cpu_op operator",
    HostKind.ANNOTATION: "user_annotation",
    HostKind.PYTHON: "python_function",
    HostKind.RUNTIME: "cuda_runtime cuda_driver hip_runtime hip_driver xpu_runtime xpu_driver "
    "mtia_runtime privateuse1_runtime privateuse1_driver runtime driver",
    HostKind.OVERHEAD: "overhead",
    FIRST_DEVICE_CODE + DeviceKind.KERNEL: "kernel concurrent_kernel privateuse1_kernel",
    FIRST_DEVICE_CODE + DeviceKind.COPY: "gpu_memcpy memcpy",
    FIRST_DEVICE_CODE + DeviceKind.SET: "gpu_memset memset",
    SYNC_CODE: "cuda_sync",
}
_CODES = {category: code for code, some in _CATEGORIES.items() for category in some.split()}


class CategoryCodes(dict[str, int]):
    """Category -> code, whatever its capitals; IGNORED for those that are no work."""

    def __missing__(self, category: str) -> int:
        self[category] = code = int(_CODES.get(category.lower(), IGNORED_CODE))
        return code


UNUSABLE = np.iinfo(np.int64).min  # a time that is no number, or centuries away
_LARGEST = 2**52  # microseconds, about 140 years


class InexactError(Exception):
    """A float was met where only the text holds the nanoseconds."""


def nanoseconds(values: Sequence[Any]) -> Column:
    """Exact to the nanosecond; UNUSABLE where there is no usable number.

    Takes ints, floats, Decimals and the JSON text of a number; raises InexactError for floats too
    large to be exact.
    """
    if any(type(value) is Raw for value in values[:1]):
        return _nanoseconds_from_text(values)
    if set(map(type, values)) == {int}:
        return _nanoseconds_from_integers(values)
    try:
        numbers = np.array(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_one_time(value) for value in values], np.int64)
    large = np.abs(numbers) >= _FLOAT_EXACT_BELOW
    if large.any():
        kinds = {type(values[n]) for n in np.flatnonzero(large).tolist()}
        if float in kinds:
            raise InexactError
        if kinds != {int}:
            return np.array([_one_time(value) for value in values], np.int64)
    return nanoseconds_from_float(numbers)


def nanoseconds_from_float(numbers: Column) -> Column:
    """Of numbers that are whole, or small enough to be exact."""
    usable = np.abs(numbers) < _LARGEST
    if not usable.all():
        numbers = np.where(usable, numbers, 0)
    whole = np.floor(numbers)
    result = whole.astype(np.int64) * 1000
    result += np.rint((numbers - whole) * 1000).astype(np.int64)
    result[~usable] = UNUSABLE
    return result


def _nanoseconds_from_integers(values: Sequence[int]) -> Column:
    try:
        whole = np.array(values, np.int64)
    except OverflowError:
        return np.array([_one_time(value) for value in values], np.int64)
    result = whole * 1000
    result[(whole <= -_LARGEST) | (whole >= _LARGEST)] = UNUSABLE
    return result


def _nanoseconds_from_text(values: Sequence[Any]) -> Column:
    """Of JSON texts: at once where all have the same form, one by one otherwise."""
    texts = [bytes(value) if type(value) is Raw else str(value).encode() for value in values]
    width = len(texts[0])
    dot = texts[0].find(b".")
    if 0 < dot <= 15 and width == dot + 4 and {len(text) for text in texts} == {width}:
        digits = np.frombuffer(b"".join(texts), np.uint8).reshape(len(texts), width)
        points = digits[:, dot] == ord(".")
        numbers = np.delete(digits, dot, axis=1).astype(np.int64) - ord("0")
        if points.all() and numbers.min() >= 0 and numbers.max() <= 9:
            return numbers @ (10 ** np.arange(width - 2, -1, -1, dtype=np.int64))
    return np.array([_one_time(text.decode("ascii", "replace")) for text in texts], np.int64)


def _one_time(value: Any) -> int:
    try:
        number = Decimal(value.strip().strip('"') if isinstance(value, str) else value)
    except (InvalidOperation, TypeError, ValueError):
        return int(UNUSABLE)
    if not number.is_finite() or not -_LARGEST < number < _LARGEST:
        return int(UNUSABLE)
    return round(number * 1000)
