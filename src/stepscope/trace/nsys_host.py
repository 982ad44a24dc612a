"""What the host did: calls into CUDA and the operating system, ranges, the profiler's work."""

import re
from array import array

import numpy as np

from stepscope.record.timeline import NOTHING, HostKind, Quality, Shapes
from stepscope.trace.nsys_names import call_name
from stepscope.trace.nsys_rows import Interned, Rows, count, mapped, stacked, with_times
from stepscope.trace.nsys_tables import NO_TIME, Database

CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
RANGES = "NVTX_EVENTS"
SYSTEM_CALLS = "OSRT_API"
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")

_RANGE_TYPES = (59, 60, 70, 71)  # push/pop and start/end, recorded live or imported from text
_OPERATOR = re.compile(r"[a-z_][a-z0-9_]*::")
_MARK = re.compile(rb", (seq|op_id|sizes|input_op_ids) = ")
_NO_NAME = "(no name)"


def read_host(database: Database, names: Interned, shapes: Interned, quality: Quality) -> Rows:
    """Rows with start, end, kind, name, thread, correlation, external, sequence and shapes.

    A range still open when recording stopped has NO_TIME as its end.
    """
    runtime = HostKind.RUNTIME
    return stacked(
        [
            _named(database, CALLS, runtime, names, quality),
            _named(database, SYSTEM_CALLS, runtime, names, quality),
            *(_named(database, table, HostKind.OVERHEAD, names, quality) for table in OVERHEADS),
            _ranges(database, names, shapes, quality),
        ]
    )


def _named(
    database: Database, table: str, kind: HostKind, names: Interned, quality: Quality
) -> Rows:
    rows = database.integers(table, ["start", "end", "globalTid", "correlationId", "nameId"])
    what = {CALLS: "runtime calls", SYSTEM_CALLS: "system calls"}.get(table, "overheads")
    rows = with_times(rows, quality, what)
    texts = database.strings(rows["nameId"])
    size = len(rows["start"])
    nothing = np.full(size, NOTHING, np.int64)
    return {
        "start": rows["start"],
        "end": rows["end"],
        "kind": np.full(size, kind, np.uint8),
        "name": mapped([rows["nameId"]], lambda key: names[call_name(texts.get(key, _NO_NAME))]),
        "thread": rows["globalTid"],
        # Overheads repeat the number of the call they happened in; only that call launched.
        "correlation": rows["correlationId"] if table == CALLS else nothing,
        "external": nothing,
        "sequence": nothing,
        "shapes": np.full(size, NOTHING, np.int32),
    }


class _RangeTexts:
    """Takes apart what PyTorch's emit_nvtx writes: `aten::mm, seq = 7, op_id = 9, sizes = [[4]]`.

    Called with each text in turn it gives the index of the name and keeps the rest.
    """

    def __init__(self, names: Interned, shapes: Interned) -> None:
        self._names, self._shapes = names, shapes
        self._plain: dict[bytes, int] = {}
        self.external, self.sequence, self.shapes = array("q"), array("q"), array("q")

    def __call__(self, text: bytes) -> int:
        # Nearly all texts are a name seen before with a number of its own.
        name, marked, operator = text.partition(b", op_id = ")
        known = self._plain.get(name)
        if known is None or (marked and not operator.isdigit()) or len(operator) > 18:
            return self._taken_apart(text)
        self.external.append(int(operator) if marked else NOTHING)
        self.sequence.append(NOTHING)
        self.shapes.append(NOTHING)
        return known

    def _taken_apart(self, text: bytes) -> int:
        name, *marks = _MARK.split(text)
        fields = dict(zip(marks[::2], marks[1::2], strict=True))
        self.external.append(_number(fields.get(b"op_id")))
        self.sequence.append(_number(fields.get(b"seq")))
        sizes = fields.get(b"sizes")
        self.shapes.append(self._shapes[Shapes(sizes.replace(b" ", b""))] if sizes else NOTHING)
        return self._plain.setdefault(name, self._names[name.decode(errors="replace") or _NO_NAME])


def _ranges(database: Database, names: Interned, shapes: Interned, quality: Quality) -> Rows:
    columns = ("start", "end", "globalTid", "eventType", "textId")
    texts = _RangeTexts(names, shapes)
    rows = database.select(
        RANGES,
        {column: database.integer(RANGES, column) for column in columns},
        {"name": ("text" if database.has(RANGES, "text") else "null", texts)},
    )
    rows |= {
        "external": np.array(texts.external, np.int64),
        "sequence": np.array(texts.sequence, np.int64),
        "shapes": np.array(texts.shapes, np.int32),
    }
    rows = _only_ranges(rows, database.has(RANGES, "eventType"), quality)
    still_open = rows["end"] == NO_TIME
    count(quality.repaired, "ranges still open at the end of the recording", int(still_open.sum()))
    rows |= {"open": still_open, "end": np.where(still_open, rows["start"], rows["end"])}
    rows = with_times(rows, quality, "ranges")
    registered = database.strings(rows["textId"])
    by_id = mapped([rows["textId"]], lambda key: names[registered.get(key, _NO_NAME)])
    name = np.where(rows["textId"] >= 0, by_id, rows["name"]).astype(np.int32)
    like = np.fromiter((bool(_OPERATOR.match(n)) for n in names), bool, len(names))
    operator = (rows["sequence"] >= 0) | (rows["external"] >= 0) & like[name]
    return {
        "start": rows["start"],
        "end": np.where(rows["open"], NO_TIME, rows["end"]),
        "kind": np.where(operator, HostKind.OPERATOR, HostKind.ANNOTATION).astype(np.uint8),
        "name": name,
        "thread": rows["globalTid"],
        "correlation": np.full(len(name), NOTHING, np.int64),
        "external": rows["external"],
        "sequence": rows["sequence"],
        "shapes": rows["shapes"],
    }


def _only_ranges(rows: Rows, typed: bool, quality: Quality) -> Rows:
    ranges = np.isin(rows["eventType"], _RANGE_TYPES) if typed else rows["end"] != NO_TIME
    others = len(ranges) - int(ranges.sum())
    quality.read += others
    count(quality.ignored, "NVTX marks and names", others)
    return {name: column[ranges] for name, column in rows.items()}


def _number(text: bytes | None) -> int:
    return int(text) if text and text.isdigit() and len(text) < 19 else NOTHING
