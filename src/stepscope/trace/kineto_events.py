"""The events of a Kineto trace as msgspec decodes them: only the fields the timeline needs.

Two decoders share the layout. FAST reads times as numbers; EXACT keeps their text, for recordings
whose microseconds are too large for a float to hold the nanoseconds.
"""

from functools import reduce
from operator import or_
from typing import Any, Generic, TypeVar

from msgspec import Raw, Struct, defstruct, field
from msgspec.json import Decoder

Time = TypeVar("Time")
ABSENT = Raw()
NO_DURATION = float("nan")
FLOAT_EXACT_BELOW = 2.0**43  # microseconds: beyond, half a unit in the last place exceeds 0.5 ns


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


class Span(Struct, Generic[Time], gc=False, tag_field="ph", tag="X", kw_only=True):
    """An event with a start and a duration (NaN where it is missing), in microseconds."""

    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: Time
    dur: float = NO_DURATION
    args: Args = NO_ARGS


class Begin(Struct, Generic[Time], gc=False, tag_field="ph", tag="B", kw_only=True):
    """The first half of a span written in two."""

    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: Time


class End(Struct, Generic[Time], gc=False, tag_field="ph", tag="E", kw_only=True):
    """The second half: ends what began last on its thread."""

    pid: int | str = ""
    tid: int | str = ""
    ts: Time


class Instant(Struct, Generic[Time], gc=False, tag_field="ph", tag="i", kw_only=True):
    """A moment: memory events are the ones with bytes."""

    pid: int | str = ""
    tid: int | str = ""
    ts: Time
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
BY_PHASE: dict[str, type[Struct]] = {
    **_TIMELESS,
    "M": Label,
    "X": Span,
    "B": Begin,
    "E": End,
    "i": Instant,
}
REASONS: dict[type, str] = {
    Label: "labels",
    **{_TIMELESS[phase]: reason for phases, reason in SKIPPED.items() for phase in phases},
}
"""Why events of a type are not in the timeline."""


def _decoder(time: Any, *, strict: bool) -> Decoder[list[Any]]:
    kinds: list[Any] = [Span[time], Begin[time], End[time], Instant[time], *REASONS]
    return Decoder(list[reduce(or_, kinds)], strict=strict)  # type: ignore[misc]


FAST = _decoder(int | float, strict=True)
EXACT = _decoder(Raw, strict=True)
LAX = {FAST: _decoder(int | float, strict=False), EXACT: _decoder(Raw, strict=False)}
"""The same, with numbers written as text taken for numbers."""
