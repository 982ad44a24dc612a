"""Host and device events of an Nsight Systems export, named as torch.profiler names them."""

import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceKind,
    Geometry,
    HostKind,
    Quality,
    Shapes,
    Stream,
    distinct_rows,
    map_rows,
)
from stepscope.trace.format import Repair
from stepscope.trace.limits import LARGEST_SIZE
from stepscope.trace.nsight.sqlite_export import (
    NO_TIME,
    Database,
    Interned,
    Rows,
    add_count,
    process_of,
    stack_rows,
    with_times,
)

_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
_WAYS = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
_UNIFIED_WAYS = ("HtoD", "DtoH", "DtoD")
_COPY_DIRECTIONS = dict(enumerate((*_WAYS, *_UNIFIED_WAYS), start=1))
_PLAIN_MEMORIES = ("Pageable", "Pinned", "Device", "Array", "Managed")
_MEMORIES = dict(enumerate((*_PLAIN_MEMORIES, "Device Static", "Managed Static")))
_SYNC_NAMES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_SIDES = {"D": "Device", "A": "Array"}
_UNKNOWN = "Unknown"


def call_name(name: str) -> str:
    """`cudaLaunchKernel` for `cudaLaunchKernel_v7000`: without version and stream mode."""
    return _VERSION.sub("", name)


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
    named = [_named(database, table, names, quality) for table in (CALLS, SYSTEM_CALLS, *OVERHEADS)]
    return stack_rows([*named, _ranges(database, names, shapes, quality)])


def _named(database: Database, table: str, names: Interned, quality: Quality) -> Rows:
    rows = database.integers(table, ["start", "end", "globalTid", "correlationId", "nameId"])
    what = {CALLS: "runtime calls", SYSTEM_CALLS: "system calls"}.get(table, "overheads")
    rows = with_times(rows, quality, what)
    texts = database.strings(rows["nameId"])
    kind = HostKind.OVERHEAD if table in OVERHEADS else HostKind.RUNTIME
    # Overheads repeat the number of the call they happened in; only that call launched.
    launched = {"correlation": rows["correlationId"]} if table == CALLS else {}
    return launched | {
        "start": rows["start"],
        "end": rows["end"],
        "kind": np.full(len(rows["start"]), kind, np.uint8),
        "name": map_rows([rows["nameId"]], lambda key: names[call_name(texts.get(key, _NO_NAME))]),
        "thread": rows["globalTid"],
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
    typed = database.has(RANGES, "eventType")
    ranges = np.isin(rows["eventType"], _RANGE_TYPES) if typed else rows["end"] != NO_TIME
    others = len(ranges) - int(ranges.sum())
    quality.read += others
    add_count(quality.ignored, "NVTX marks and names", others)
    rows = {column: values[ranges] for column, values in rows.items()}
    still_open = rows["end"] == NO_TIME
    add_count(quality.repaired, Repair.OPEN_RANGE, int(still_open.sum()))
    rows |= {"open": still_open, "end": np.where(still_open, rows["start"], rows["end"])}
    rows = with_times(rows, quality, "ranges")
    registered = database.strings(rows["textId"])
    by_id = map_rows([rows["textId"]], lambda key: names[registered.get(key, _NO_NAME)])
    name = np.where(rows["textId"] >= 0, by_id, rows["name"]).astype(np.int32)
    like = np.fromiter((bool(_OPERATOR.match(n)) for n in names), bool, len(names))
    operator = (rows["sequence"] >= 0) | (rows["external"] >= 0) & like[name]
    return {
        "start": rows["start"],
        "end": np.where(rows["open"], NO_TIME, rows["end"]),
        "kind": np.where(operator, HostKind.OPERATOR, HostKind.ANNOTATION).astype(np.uint8),
        "name": name,
        "thread": rows["globalTid"],
        **{column: rows[column] for column in ("external", "sequence", "shapes")},
    }


def _number(text: bytes | None) -> int:
    return int(text) if text and text.isdigit() and len(text) < 19 else NOTHING


KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_COMMON = (
    *("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
    *("graphId", "graphNodeId"),
)
_GEOMETRY = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)


def read_device(
    database: Database, names: Interned, geometries: Interned, quality: Quality
) -> Rows:
    """Rows with start, end, kind, name, process, context, device, stream, correlation, bytes,
    geometry and graph, in the order of the file."""
    return stack_rows(
        [
            _kernels(database, names, geometries, quality),
            _moved(database, names, quality, COPIES),
            _moved(database, names, quality, SETS),
            _graphs(database, names, quality),
        ]
    )


def _kernels(database: Database, names: Interned, geometries: Interned, quality: Quality) -> Rows:
    named = database.first(KERNELS, "demangledName", "shortName", "mangledName")
    rows = database.integers(KERNELS, [*_COMMON, named, *_GEOMETRY])
    rows = with_times(rows, quality, "kernels")
    texts, unnamed = database.strings(rows[named]), "(kernel without a name)"
    sizes = [rows[column] for column in _GEOMETRY]
    return _common(rows, DeviceKind.KERNEL) | {
        "name": map_rows([rows[named]], lambda key: names[texts.get(key, unnamed)]),
        "geometry": map_rows(sizes, lambda *cells: _geometry(cells, geometries)),
    }


def _moved(database: Database, names: Interned, quality: Quality, table: str) -> Rows:
    """Copies or memsets."""
    labels = database.records("ENUM_CUDA_MEM_KIND", ["id", "label"])
    memories = {r["id"]: r["label"] for r in labels if isinstance(r["label"], str)} or _MEMORIES
    kind, what, kinds = DeviceKind.COPY, "copies", ["copyKind", "srcKind", "dstKind"]
    if table == SETS:
        kind, what, kinds = DeviceKind.SET, "memsets", ["memKind"]

    def name(*numbers: int) -> int:
        if table == SETS:
            return names[f"Memset ({memories.get(numbers[0], _UNKNOWN)})"]
        direction = _COPY_DIRECTIONS.get(numbers[0], _UNKNOWN)
        source, target = (
            memories.get(memory, _SIDES.get(side, _UNKNOWN))
            for memory, side in zip(numbers[1:], (direction[0], direction[-1]), strict=True)
        )
        return names[f"Memcpy {direction} ({source} -> {target})"]

    rows = with_times(database.integers(table, [*_COMMON, "bytes", *kinds]), quality, what)
    named = map_rows([rows[column] for column in kinds], name)
    sizes = np.where(np.abs(rows["bytes"]) < LARGEST_SIZE, rows["bytes"], NOTHING)
    return _common(rows, kind) | {"name": named, "bytes": sizes}


def _graphs(database: Database, names: Interned, quality: Quality) -> Rows:
    rows = with_times(database.integers(GRAPHS, _COMMON), quality, "graph launches")
    if launches := len(rows["start"]):
        busy = int((rows["end"] - rows["start"]).sum())
        quality.notes.append(
            f"{launches} CUDA graph launches ({busy / 1e6:,.1f} ms) recorded without their kernels;"
            " record with `--cuda-graph-trace=node`."
        )
    return _common(rows, DeviceKind.KERNEL) | {
        "name": map_rows([rows["graphId"]], lambda graph: names[f"CUDA graph {max(graph, 0)}"])
    }


def _common(rows: Rows, kind: DeviceKind) -> Rows:
    # Node ids use all 64 bits, so some read as negative numbers; 0 is written for "none".
    graph = np.where(rows["graphId"] > 0, rows["graphId"], rows["graphNodeId"] & (2**63 - 1))
    from_graph = (rows["graphId"] > 0) | ~np.isin(rows["graphNodeId"], (0, NOTHING))
    return {
        "start": rows["start"],
        "end": rows["end"],
        "kind": np.full(len(rows["start"]), kind, np.uint8),
        "process": process_of(rows["globalPid"]),
        "context": rows["contextId"],
        "device": rows["deviceId"],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
        "graph": np.where(from_graph, graph, NOTHING),
    }


def _geometry(cells: tuple[int, ...], geometries: Interned) -> int:
    known = [None if cell < 0 else cell for cell in cells]
    if all(value is None for value in known):
        return NOTHING
    shared = [value for value in known[7:] if value is not None]
    grid = None if None in known[:3] else cells[:3]
    block = None if None in known[3:6] else cells[3:6]
    return geometries[Geometry(grid, block, known[6], sum(shared) if shared else None)]


SYNCS = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
EVENTS = "CUPTI_ACTIVITY_KIND_CUDA_EVENT"

_NO_STREAM = 0xFFFFFFFF  # CUPTI's mark for a synchronisation of a whole context


def renumber_devices(rows: Rows, numbers: Mapping[tuple[int, int], int]) -> Rows:
    """Rows with the machine's numbers for devices where they are known."""
    columns = [rows["process"], rows["device"]]
    return {**rows, "device": map_rows(columns, lambda p, d: numbers.get((p, d), d), np.int64)}


def read_syncs(database: Database, names: Interned, work: Rows, quality: Quality) -> Rows:
    """Rows with start, end, name, process, device, stream, correlation and waits_for.

    Synchronisations name device 0 whatever their device is: their context tells it, through the
    work that ran there.
    """
    columns = ["start", "end", "contextId", "streamId", "correlationId", "globalPid"]
    rows = database.integers(SYNCS, [*columns, "deviceId", "syncType", "eventSyncId"])
    rows = with_times(rows, quality, "synchronisations")
    process = process_of(rows["globalPid"])
    contexts = distinct_rows([work["process"], work["context"], work["device"]])[0]
    of_context = {(p, c): d for p, c, d in contexts}

    # The stream on which an awaited event was recorded.
    events = database.integers(EVENTS, ["globalPid", "eventSyncId", "streamId"])
    recorded_on = [process_of(events["globalPid"]), events["eventSyncId"], events["streamId"]]
    known = {(p, e): s for p, e, s in distinct_rows(recorded_on)[0] if e != NOTHING}

    def device(own: int, context: int, recorded: int) -> int:
        return of_context.get((own, context), recorded)

    def awaited(own: int, event: int) -> int:
        return known.get((own, event), NOTHING)

    return {
        "start": rows["start"],
        "end": rows["end"],
        "name": map_rows([rows["syncType"]], lambda kind: names[_SYNC_NAMES.get(kind, _UNKNOWN)]),
        "process": process,
        "device": map_rows([process, rows["contextId"], rows["deviceId"]], device, np.int64),
        "stream": np.where(rows["streamId"] == _NO_STREAM, NOTHING, rows["streamId"]),
        "correlation": rows["correlationId"],
        "waits_for": map_rows([process, rows["eventSyncId"]], awaited, np.int64),
    }


def streams_of(groups: Sequence[Rows]) -> tuple[list[Stream], list[Column]]:
    """The streams of all groups, and one int32 column for each group; NOTHING stays NOTHING."""
    keys = [np.concatenate([g[c] for g in groups]) for c in ("process", "device", "stream")]
    rows, which = distinct_rows(keys)
    real = [row for row in rows if row[2] != NOTHING]
    shared = Counter((device, stream) for _, device, stream in real)
    streams = [
        Stream(device, str(stream) if shared[device, stream] == 1 else f"{stream} of {process}")
        for process, device, stream in real
    ]
    index = {row: n for n, row in enumerate(real)}
    column = np.array([index.get(row, NOTHING) for row in rows], np.int32)[which]
    cuts = np.cumsum([len(group["stream"]) for group in groups])[:-1]
    return streams, np.split(column, cuts)
