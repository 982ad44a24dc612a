"""A second reader of Kineto traces: plain json, event by event, slow and simple.

The fast reader is checked against it, and analyses against what it reads.
"""

import gzip
import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from stepscope.record.timeline import (
    NOTHING,
    Collective,
    DeviceEvents,
    DeviceInfo,
    DeviceKind,
    Geometry,
    HostEvents,
    HostKind,
    MemoryEvents,
    Quality,
    Shapes,
    Stream,
    SyncEvents,
    Thread,
    Timeline,
    make_events,
)

TRACES = Path(__file__).parent.parent / "data" / "traces"
_LARGE = ("v100_train_2ranks_rank1", "gpt_b4x1024_bf16_h200", "v100_ns_timestamps", "resnet50_b64")


def quicker(names: Iterable[str]) -> list[Any]:
    """Recordings as parameters of a test that reads them plainly: the largest are `slow`."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=[slow] * name.startswith(_LARGE)) for name in names]


HOST = {
    "cpu_op": HostKind.OPERATOR,
    "user_annotation": HostKind.ANNOTATION,
    "python_function": HostKind.PYTHON,
    "cuda_runtime": HostKind.RUNTIME,
    "cuda_driver": HostKind.RUNTIME,
    "overhead": HostKind.OVERHEAD,
}
DEVICE = {
    "kernel": DeviceKind.KERNEL,
    "gpu_memcpy": DeviceKind.COPY,
    "gpu_memset": DeviceKind.SET,
}


class _Interned(dict[Any, int]):
    def __missing__(self, key: Any) -> int:
        self[key] = len(self)
        return self[key]


def load(path: Path) -> dict[str, Any]:
    """The JSON of a trace with exact decimals."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return json.loads(raw.decode("utf-8", "replace"), strict=False, parse_float=Decimal)


def read_plain(path: Path) -> Timeline:
    """The timeline of a whole, valid trace."""
    document = load(path)
    every = [e for e in document["traceEvents"] if e.get("ph") == "X" or "Bytes" in _args(e)]
    times = [_ns(e["ts"]) for e in every if e.get("cat") in {*HOST, *DEVICE} or "Bytes" in _args(e)]
    origin = min(times, default=0)
    names, threads, streams = _Interned(), _Interned(), _Interned()
    shapes, geometries, collectives = _Interned(), _Interned(), _Interned()
    labels = {
        (str(e.get("pid")), str(e.get("tid"))): e["args"]["name"]
        for e in document["traceEvents"]
        if e.get("ph") == "M" and e.get("name") == "thread_name"
    }
    host = [e for e in every if e.get("cat") in HOST]
    host.sort(key=lambda e: (_ns(e["ts"]), -_ns(e.get("dur", 0))))
    device = sorted((e for e in every if e.get("cat") in DEVICE), key=lambda e: _ns(e["ts"]))
    launches = {
        _args(e)["correlation"]: n
        for n, e in enumerate(host)
        if HOST[e["cat"]] == HostKind.RUNTIME and "correlation" in _args(e)
    }
    host_rows = make_events(
        HostEvents,
        kind=[HOST[e["cat"]] for e in host],
        name=[names[e["name"]] for e in host],
        start=[_ns(e["ts"]) - origin for e in host],
        duration=[_ns(e.get("dur", 0)) for e in host],
        thread=[threads[str(e["pid"]), str(e["tid"])] for e in host],
        correlation=[_args(e).get("correlation", NOTHING) for e in host],
        external=[_args(e).get("External id", NOTHING) for e in host],
        sequence=[_args(e).get("Sequence number", NOTHING) for e in host],
        shapes=[_shapes(_args(e), shapes) for e in host],
        collective=[_collective(_args(e), collectives) for e in host],
        parent=_parents(host),
    )
    device_rows = make_events(
        DeviceEvents,
        kind=[DEVICE[e["cat"]] for e in device],
        name=[names[e["name"]] for e in device],
        start=[_ns(e["ts"]) - origin for e in device],
        duration=[_ns(e.get("dur", 0)) for e in device],
        stream=[
            streams[int(_args(e).get("device", e["pid"])), str(_args(e).get("stream", e["tid"]))]
            for e in device
        ],
        correlation=[_args(e).get("correlation", NOTHING) for e in device],
        external=[_args(e).get("External id", NOTHING) for e in device],
        bytes=[_args(e).get("bytes", NOTHING) for e in device],
        geometry=[_geometry(_args(e), geometries) for e in device],
        collective=[_collective(_args(e), collectives) for e in device],
        graph=[_args(e).get("graph id", NOTHING) for e in device],
        launch=[launches.get(_args(e).get("correlation"), NOTHING) for e in device],
    )
    moves = sorted((e for e in every if "Bytes" in _args(e)), key=lambda e: _ns(e["ts"]))
    memory = make_events(
        MemoryEvents,
        time=[_ns(e["ts"]) - origin for e in moves],
        device=[_args(e)["Device Id"] if _args(e)["Device Type"] else NOTHING for e in moves],
        address=[_args(e)["Addr"] for e in moves],
        bytes=[_args(e)["Bytes"] for e in moves],
        allocated=[_args(e).get("Total Allocated", NOTHING) for e in moves],
        reserved=[_args(e).get("Total Reserved", NOTHING) for e in moves],
        thread=[threads[str(e["pid"]), str(e["tid"])] for e in moves],
    )
    ends = [*host_rows.end, *device_rows.end, *memory.time]
    about = document.get("distributedInfo", {})
    return Timeline(
        source=str(path),
        tool="kineto",
        origin_ns=int(document.get("baseTimeNanoseconds", 0)) + origin,
        names=list(names),
        threads=[Thread(p, t, labels.get((p, t), "")) for p, t in threads],
        streams=[Stream(d, s) for d, s in streams],
        shapes=list(shapes),
        geometries=list(geometries),
        collectives=list(collectives),
        devices=[_device(d) for d in document.get("deviceProperties", [])],
        host=host_rows,
        device=device_rows,
        memory=memory,
        syncs=make_events(SyncEvents),
        span=(0, int(max(ends, default=0))),
        rank=about.get("rank"),
        world_size=about.get("world_size"),
        backend=about.get("backend"),
        quality=Quality(read=len(document["traceEvents"]), kept=len(host) + len(device)),
    )


def _ns(microseconds: Any) -> int:
    return round(Decimal(microseconds) * 1000)


def _args(event: dict[str, Any]) -> dict[str, Any]:
    return event.get("args") or {}


def _parents(host: list[dict[str, Any]]) -> list[int]:
    stacks: dict[Any, list[tuple[int, int]]] = {}
    parents = []
    for n, event in enumerate(host):
        begin, end = _ns(event["ts"]), _ns(event["ts"]) + _ns(event.get("dur", 0))
        stack = stacks.setdefault((event["pid"], event["tid"]), [])
        while stack and not (begin < stack[-1][1] and end <= stack[-1][1]):
            stack.pop()
        parents.append(stack[-1][0] if stack else NOTHING)
        stack.append((n, end))
    return parents


def _text(args: dict[str, Any], key: str) -> bytes:
    return (
        json.dumps(args[key], separators=(",", ":"), default=str).encode() if key in args else b""
    )


def _shapes(args: dict[str, Any], known: _Interned) -> int:
    if "Input Dims" not in args:
        return NOTHING
    keys = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
    return known[Shapes(*(_text(args, key) for key in keys))]


def _geometry(args: dict[str, Any], known: _Interned) -> int:
    if "grid" not in args:
        return NOTHING
    percent = args.get("est. achieved occupancy %")
    return known[
        Geometry(
            grid=tuple(args["grid"]),
            block=tuple(args["block"]),
            registers=args.get("registers per thread"),
            shared_bytes=args.get("shared memory"),
            blocks_per_sm=_number(args.get("blocks per SM")),
            warps_per_sm=_number(args.get("warps per SM")),
            occupancy=None if percent is None else float(percent) / 100,
        )
    ]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _collective(args: dict[str, Any], known: _Interned) -> int:
    if "Collective name" not in args:
        return NOTHING
    return known[
        Collective(
            name=args["Collective name"],
            dtype=args.get("dtype"),
            in_elements=args.get("In msg nelems"),
            out_elements=args.get("Out msg nelems"),
            group_size=args.get("Group size"),
            group=args.get("Process Group Name"),
            ranks=args.get("Process Group Ranks"),
        )
    ]


def _device(properties: dict[str, Any]) -> DeviceInfo:
    capability = (properties.get("computeMajor"), properties.get("computeMinor"))
    return DeviceInfo(
        index=properties["id"],
        name=properties.get("name"),
        memory_bytes=properties.get("totalGlobalMem"),
        capability=None if None in capability else capability,
        multiprocessors=properties.get("numSms"),
        warp_size=properties.get("warpSize"),
        max_threads_per_sm=properties.get("maxThreadsPerMultiprocessor"),
    )
