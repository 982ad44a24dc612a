"""What ran on the devices: kernels, copies, memsets, and graphs recorded as one stretch."""

import numpy as np

from stepscope.record.timeline import NOTHING, DeviceKind, Geometry, Quality
from stepscope.trace.nsys_names import copy_name, memory_words, set_name
from stepscope.trace.nsys_rows import Interned, Rows, mapped, process_of, stacked, with_times
from stepscope.trace.nsys_tables import Database

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"

_COMMON = (
    "start",
    "end",
    "deviceId",
    "contextId",
    "streamId",
    "correlationId",
    "globalPid",
    "graphId",
    "graphNodeId",
)
_GEOMETRY = (
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
)


def read_device(
    database: Database, names: Interned, geometries: Interned, quality: Quality
) -> Rows:
    """Rows with start, end, kind, name, process, context, device, stream, correlation, bytes,
    geometry and graph, in the order of the file."""
    return stacked(
        [
            _kernels(database, names, geometries, quality),
            _copies(database, names, quality),
            _sets(database, names, quality),
            _graphs(database, names, quality),
        ]
    )


def _kernels(database: Database, names: Interned, geometries: Interned, quality: Quality) -> Rows:
    named = database.first(KERNELS, "demangledName", "shortName", "mangledName")
    rows = database.integers(KERNELS, [*_COMMON, named, *_GEOMETRY])
    rows = with_times(rows, quality, "kernels")
    texts = database.strings(rows[named])
    return _common(rows, DeviceKind.KERNEL) | {
        "name": mapped([rows[named]], lambda key: names[texts.get(key, "(kernel without a name)")]),
        "geometry": mapped(
            [rows[c] for c in _GEOMETRY], lambda *cells: _geometry(cells, geometries)
        ),
    }


def _copies(database: Database, names: Interned, quality: Quality) -> Rows:
    kinds = ["copyKind", "srcKind", "dstKind"]
    rows = with_times(database.integers(COPIES, [*_COMMON, "bytes", *kinds]), quality, "copies")
    memories = memory_words(database)
    return _common(rows, DeviceKind.COPY) | {
        "name": mapped(
            [rows[k] for k in kinds], lambda k, s, d: names[copy_name(k, s, d, memories)]
        ),
        "bytes": rows["bytes"],
    }


def _sets(database: Database, names: Interned, quality: Quality) -> Rows:
    rows = with_times(database.integers(SETS, [*_COMMON, "bytes", "memKind"]), quality, "memsets")
    memories = memory_words(database)
    return _common(rows, DeviceKind.SET) | {
        "name": mapped([rows["memKind"]], lambda kind: names[set_name(kind, memories)]),
        "bytes": rows["bytes"],
    }


def _graphs(database: Database, names: Interned, quality: Quality) -> Rows:
    rows = with_times(database.integers(GRAPHS, _COMMON), quality, "graph launches")
    if launches := len(rows["start"]):
        busy = int((rows["end"] - rows["start"]).sum())
        quality.notes.append(
            f"{launches} CUDA graph launches ({busy} ns) were recorded as one stretch each: the "
            "kernels inside are not known (record with `--cuda-graph-trace=node` to see them)."
        )
    return _common(rows, DeviceKind.KERNEL) | {
        "name": mapped([rows["graphId"]], lambda graph: names[f"CUDA graph {max(graph, 0)}"])
    }


def _common(rows: Rows, kind: DeviceKind) -> Rows:
    size = len(rows["start"])
    nothing = np.full(size, NOTHING, np.int64)
    # Node ids use all 64 bits, so some read as negative numbers; 0 is written for "none".
    graph = np.where(rows["graphId"] > 0, rows["graphId"], rows["graphNodeId"] & (2**63 - 1))
    from_graph = (rows["graphId"] > 0) | ~np.isin(rows["graphNodeId"], (0, NOTHING))
    return {
        "start": rows["start"],
        "end": rows["end"],
        "kind": np.full(size, kind, np.uint8),
        "process": process_of(rows["globalPid"]),
        "context": rows["contextId"],
        "device": rows["deviceId"],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
        "bytes": nothing,
        "geometry": np.full(size, NOTHING, np.int32),
        "graph": np.where(from_graph, graph, NOTHING),
    }


def _geometry(cells: tuple[int, ...], geometries: Interned) -> int:
    known = [None if cell < 0 else cell for cell in cells]
    if all(value is None for value in known):
        return NOTHING
    shared = [value for value in known[7:] if value is not None]
    return geometries[
        Geometry(
            grid=None if None in known[:3] else cells[:3],
            block=None if None in known[3:6] else cells[3:6],
            registers=known[6],
            shared_bytes=sum(shared) if shared else None,
        )
    ]
