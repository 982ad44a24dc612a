"""Damaged Kineto traces: a few dozen events of real recordings, changed as bytes or as events."""

import copy
import gzip
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.training import training
from fuzz.values import VALUES, change_value, dumped, replace_file

TRACES = Path(__file__).parents[2] / "data" / "traces"
LARGEST_SEED = 1_000_000
"""Bytes of a recording that cases are made of."""
_EVENTS = 40
TOKENS = [
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"\n", b"\0", b"\x7f", b"\xff\xfe", b"-"),
    *(b"NaN", b"Infinity", b"null", b"true", b"1e999", b"1e-999", b"99999999999999999999999999"),
    *(b'"ph":"B"', b'"ph":"E"', b'"ts":0', b'"ts":-1', b'"dur":-5', b'"args":null', b'"args":[]'),
    *(b'{"ph":"X"}', b'},{"ph":"X",', b'"traceEvents":[', b'"traceEvents":', b'"\\ud800"'),
    *(b'"pid":{}', b'"cat":5', b'"name":null', b'"Bytes":"x"', b'"stream":[1]', b'"device":1.5'),
]
Document = dict[str, Any]
Event = dict[str, Any]
_Draw = random.Random

# What a field of an event may hold that no profiler wrote.
_NAMES = (
    *("Optimizer.step#SGD.step", "Optimizer.step#Adam.step", "ProfilerStep#3", "ProfilerStep"),
    *("iteration 7", "step", "batch 9999999999999999999999", "enumerate(DataLoader)#_next"),
    *("nccl:all_reduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "gloo:all_reduce"),
    *("cudaLaunchKernel", "cudaStreamSynchronize", "cudaStreamWaitEvent", "cudaGraphLaunch"),
    *("Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)", "Memset (Device)"),
    *("train.py(3): step", "nn.Module: Net_0", "torch/utils/data/dataloader.py(3): __next__"),
    *("autograd::engine::evaluate_function: MmBackward0", "aten::mm", "aten::empty", ""),
    *("multi_tensor_apply_kernel<FusedAdam>", "triton_poi_fused_0", "void gemm<float>(int)"),
    *("[memory]", "<script>alert(1)</script>", "\x1b[31m", "\ud800", "é" * 3000, "((((" * 2000),
)
_CATEGORIES = (
    *("cpu_op", "user_annotation", "python_function", "cuda_runtime", "overhead", "kernel"),
    *("gpu_memcpy", "gpu_memset", "cuda_sync", "ac2g", "", "KERNEL", "gpu_user_annotation", "x"),
)
_TIMES = (
    *(0, -1, 1, 0.5, 1e-9, 2**31, 2**43, 2**52, 2**52 - 1, -(2**52), 2**53, 2**63, 1e15, 1e18),
    *(1e300, float("nan"), float("inf"), "5", "x", None, 10**400, 1e12, 3.6e9, 9e15, 4.5e15 - 1),
)
_IDS = (*range(-2, 4), 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, "x")
_ARGS: dict[str, tuple[Any, ...]] = {
    "External id": _IDS,
    "correlation": _IDS,
    "Sequence number": _IDS,
    "device": (*_IDS, None, 1.5, "cuda:0"),
    "stream": (*_IDS, None, [1]),
    "bytes": (*_IDS, "12", -5, 1e30, 2**62),
    "Input Dims": ([], [[]], [[2**62, 2**62], [2**62, 2]], [[-1]], "x", [[0, 0]], [[4], [4]], 7),
    "Input type": ([], ["float"], "x", 7, [None], ["c10::BFloat16", "float"]),
    "Input Strides": ([], [[1]], "x"),
    "grid": ([1, 1, 1], [0, 0, 0], [2**31] * 3, [2**63] * 3, [-1, 1, 1], [], "x", [1.5]),
    "block": ([32, 1, 1], [0, 0, 0], [2**63] * 3, [], "x"),
    "est. achieved occupancy %": (0, 50, -5, 1e300, "x", 10**30, float("nan")),
    "blocks per SM": (0, 1e308, -1.0, "x"),
    "warps per SM": (0, 1e308, -1.0),
    "registers per thread": (*_IDS,),
    "shared memory": (*_IDS,),
    "graph id": _IDS,
    "graph node id": _IDS,
    "Collective name": ("allreduce", "_allgather_base", "x", "", 7, "wait"),
    "In msg nelems": (*_IDS, 2**62),
    "Out msg nelems": (*_IDS, 2**62),
    "Group size": (*_IDS, 0, 10**9),
    "Process Group Ranks": ("[0, 1]", [0, 1], "[", [], [[]]),
    "dtype": ("Float", "BFloat16", "x", "", 7),
    "wait_on_stream": _IDS,
    "Bytes": (*_IDS, 2**62, "x", 1.5),
    "Total Allocated": (*_IDS, 2**62),
    "Total Reserved": (*_IDS, 2**62),
    "Device Id": (*_IDS, 40000),
    "Device Type": (0, 1, 2, -1, 2**63),
    "Addr": _IDS,
}


@cache
def seeds() -> list[str]:
    """A few dozen events of every recording that is not large, spread over it or in a row, and
    some steps of training."""
    kinds = ((3, True, 1), (5, True, 2), (12, True, 1), (4, False, 1))
    texts = 2 * [json.dumps(training(*kind)) for kind in kinds]
    for path in sorted(p for p in TRACES.glob("*.json.gz") if p.stat().st_size < LARGEST_SEED):
        document = json.loads(gzip.decompress(path.read_bytes()))
        document.pop("distributedInfo", None)
        events = document["traceEvents"]
        rows = [e for e in events if e.get("ph") in "Xi" and isinstance(e.get("ts"), int | float)]
        rows.sort(key=lambda event: float(event["ts"]))
        spread = events[:: max(1, len(events) // _EVENTS)][:_EVENTS]
        middle = len(rows) // 2
        in_a_row = rows[middle : middle + 2 * _EVENTS]
        for some in filter(None, (spread, in_a_row)):
            indent = random.Random(f"{path.name}{len(some)}").choice([None, 2])
            texts.append(json.dumps({**document, "traceEvents": some}, indent=indent))
    return texts


def damaged_trace(draw: _Draw, folder: Path, name: str = "trace.json") -> Path:
    """A damaged trace in a folder."""
    content = _by_event(draw) if draw.random() < 0.6 else _by_byte(draw)
    packed = draw.random() < 0.3
    if packed:
        content = _packed(draw, content)
    packed = packed and draw.random() < 0.8 and not name.endswith(".gz")
    path = folder / (f"{name}.gz" if packed else name)
    path.write_bytes(content)
    if draw.random() < 0.01:
        replace_file(path, draw)
    return path


def _packed(draw: _Draw, content: bytes) -> bytes:
    members = [content]
    if draw.random() < 0.2:
        cut = draw.randrange(len(content) + 1)
        members = [content[:cut], content[cut:]]
    packed = bytearray(b"".join(gzip.compress(one, 1, mtime=0) for one in members))
    if draw.random() < 0.3:
        draw.choice([flip, cut_off, remove, repeat])(draw, packed)
    return bytes(packed)


# By bytes.


def flip(draw: _Draw, text: bytearray) -> None:
    for _ in range(draw.choice([1, 1, 3, 30])):
        text[draw.randrange(len(text))] = draw.randrange(256)


def insert(draw: _Draw, text: bytearray) -> None:
    for _ in range(draw.choice([1, 2, 10])):
        at = draw.randrange(len(text))
        text[at:at] = draw.choice(TOKENS)


def replace(draw: _Draw, text: bytearray) -> None:
    """Put a token where a value or a key was."""
    for _ in range(draw.choice([1, 2, 10])):
        colon = text.find(b": ", draw.randrange(len(text)))
        end = min(text.find(mark, colon) % (len(text) + 1) for mark in (b",", b"}"))
        if 0 < colon < end:
            text[colon + 2 : end] = draw.choice(TOKENS)


def remove(draw: _Draw, text: bytearray) -> None:
    at = draw.randrange(len(text))
    del text[at : at + draw.choice([1, 1, 5, 100, 5000])]


def repeat(draw: _Draw, text: bytearray) -> None:
    begin = draw.randrange(len(text))
    piece = text[begin : begin + draw.choice([1, 50, 2000])]
    at = draw.randrange(len(text))
    text[at:at] = piece * draw.choice([1, 2, 5])


def cut_off(draw: _Draw, text: bytearray) -> None:
    del text[draw.randrange(len(text)) :]


_BYTES: list[Callable[[_Draw, bytearray], None]] = [flip, insert, replace, remove, repeat, cut_off]


def _by_byte(draw: _Draw) -> bytes:
    if draw.random() < 0.05:
        head = draw.choice([b"", b"{", b'{"traceEvents":[', b"\x1f\x8b\x08", b"SQLite format 3\0"])
        return head + draw.randbytes(draw.randrange(3000))
    text = bytearray(draw.choice(seeds()).encode())
    for _ in range(draw.choice([1, 1, 2, 4])):
        if text:
            draw.choice(_BYTES)(draw, text)
    return bytes(text)


# By events.


def _by_event(draw: _Draw) -> bytes:
    document = json.loads(draw.choice(seeds()))
    for _ in range(draw.choice([1, 1, 2, 4, 8])):
        if document["traceEvents"]:
            draw.choice(_STRUCTURE)(draw, document)
    shape = draw.random()
    if shape < 0.03:
        return dumped(document["traceEvents"]).encode()
    if shape < 0.06:
        document = copy.deepcopy(document)
        change_value(document, draw)
    text = dumped(document)
    if shape > 0.97:
        key = draw.choice(['"ts": 5, ', '"dur": "x", ', '"ph": "M", ', '"args": [], '])
        text = text.replace('"ph"', f'{key}"ph"', draw.choice([1, 99]))  # twice in an event
    return text.encode(draw.choice(["utf-8"] * 12 + ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"]))


def _some(draw: _Draw, document: Document) -> list[Event]:
    """One event, some or all of them."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    if not events:
        return []
    return draw.choice([draw.choices(events, k=1), draw.choices(events, k=5), events])


def _args(event: Event) -> Event:
    if not isinstance(event.get("args"), dict):
        event["args"] = {}
    found: Event = event["args"]
    return found


def _set_time(draw: _Draw, document: Document) -> None:
    field, value = draw.choice(["ts", "dur"]), draw.choice(_TIMES)
    for event in _some(draw, document):
        event[field] = value


def _set_name(draw: _Draw, document: Document) -> None:
    name = draw.choice(_NAMES)
    for event in _some(draw, document):
        event["name"] = name


def _set_category(draw: _Draw, document: Document) -> None:
    category = draw.choice(_CATEGORIES)
    for event in _some(draw, document):
        event |= {"ph": "X", "cat": category}


def _mark(draw: _Draw, document: Document) -> None:
    """An annotation, with a duration or none."""
    name, length = draw.choice(_NAMES), draw.choice([0, 0, 1, 50, *_TIMES])
    for event in _some(draw, document):
        event |= {"ph": "X", "cat": "user_annotation", "name": name, "dur": length}


def _set_argument(draw: _Draw, document: Document) -> None:
    name = draw.choice(list(_ARGS))
    for event in _some(draw, document):
        _args(event)[name] = draw.choice(_ARGS[name])


def _set_place(draw: _Draw, document: Document) -> None:
    values = (*_IDS, None, {}, [], "a" * 3000, "\ud800")
    for event in _some(draw, document):
        event[draw.choice(["pid", "tid"])] = draw.choice(values)


def _set_anything(draw: _Draw, document: Document) -> None:
    for event in _some(draw, document)[:5]:
        event |= copy.deepcopy(event)  # what it shares with other events and cases stays
        change_value(event, draw)


def _set_header(draw: _Draw, document: Document) -> None:
    about = {
        "deviceProperties": [{"id": 0, "name": "H200", "totalGlobalMem": 1, "numSms": 132}],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "baseTimeNanoseconds": 5,
    }
    change_value(about, draw, (*VALUES, *_IDS))
    document |= about


def _drop_field(draw: _Draw, document: Document) -> None:
    field = draw.choice(["ph", "cat", "name", "ts", "dur", "pid", "tid", "args"])
    for event in _some(draw, document):
        event.pop(field, None)


def _repeat_event(draw: _Draw, document: Document) -> None:
    document["traceEvents"] += [draw.choice(document["traceEvents"])] * draw.choice([1, 5, 200])


def _nest(draw: _Draw, document: Document) -> None:
    """Calls inside each other, as a recursion leaves them."""
    depth, step = draw.choice([3, 50, 400]), draw.choice([0, 1])
    event = {"ph": "X", "pid": 1, "tid": 1, "cat": draw.choice(_CATEGORIES), "name": "f"}
    event["name"] = draw.choice(_NAMES)
    document["traceEvents"] += [
        {**event, "ts": 10 + step * n, "dur": 2 * step * (depth - n) + 1} for n in range(depth)
    ]


def _halve(draw: _Draw, document: Document) -> None:
    """Beginnings and ends where spans were."""
    phases = draw.choice([("B", "E"), ("B", "B"), ("E", "E"), ("i", "i"), ("C", "s"), ("?", "X")])
    for event in _some(draw, document):
        event["ph"] = draw.choice(phases)


def _move_memory(draw: _Draw, document: Document) -> None:
    """Allocations and releases."""
    names = ("Bytes", "Total Allocated", "Total Reserved", "Device Id", "Device Type", "Addr")
    for event in _some(draw, document):
        event |= {"ph": "i", "name": "[memory]", "cat": "cpu_instant_event"}
        args = {name: draw.choice([1, 64, 4096, *_ARGS[name][:2]]) for name in names}
        args[draw.choice(names)] = draw.choice(_ARGS[draw.choice(names)])
        event["args"] = args


def _launch(draw: _Draw, document: Document) -> None:
    """Kernels, copies and communication with their calls."""
    for number in range(draw.choice([1, 5, 40])):
        start = draw.choice([number * 10, number * 10, draw.randrange(400)])
        call = draw.choice(["cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", ""])
        args = {"correlation": number, "External id": number, "device": draw.choice([0, 0, 1])}
        host = {"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 1, "tid": 1, "args": args}
        work = {
            "ph": "X",
            "cat": draw.choice(["kernel", "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"]),
            "name": draw.choice(_NAMES),
            "args": {**args, "stream": draw.choice([7, 7, 20]), "bytes": 64},
        }
        if draw.random() < 0.3:
            name = draw.choice(list(_ARGS))
            work["args"][name] = draw.choice(_ARGS[name])
        late = draw.choice([0, 5, 30, -3])
        host |= {"ts": start, "dur": draw.choice([0, 3, 60])}
        work |= {"ts": start + late, "dur": draw.choice([0, 4, 25])}
        document["traceEvents"] += [host, work]


def _number(event: Event, field: str) -> float:
    value = event.get(field)
    return float(value) if isinstance(value, int | float) and abs(value) < 2**1000 else 0.0


def _overlap(draw: _Draw, document: Document) -> None:
    """Events that lie across, upon or before those they lay in."""
    shift = draw.choice([-0.5, 0.5, 0.0, -1.0, 1.5])
    for event in _some(draw, document):
        start, length = _number(event, "ts"), _number(event, "dur")
        event |= {"ts": start + shift * length, "dur": draw.choice([length, -length, 0])}


def _stretch(draw: _Draw, document: Document) -> None:
    """Another unit of time, or a clock that was set, for some or all."""
    factor, shift = draw.choice([1e-6, 1e-3, 1, 1e3, 1e6, -1]), draw.choice([0, 0, 1e6, -1e6, 1e15])
    for event in _some(draw, document):
        event |= {
            "ts": _number(event, "ts") * factor + shift,
            "dur": _number(event, "dur") * factor,
        }


def _shuffle(draw: _Draw, document: Document) -> None:
    draw.choice([draw.shuffle, list.reverse])(document["traceEvents"])


def _flow(draw: _Draw, document: Document) -> None:
    """Arrows of one id, to anywhere."""
    arrow = {"cat": draw.choice(["ac2g", "fwdbwd", "async_cpu_to_gpu"]), "name": "ac2g"}
    number, place = draw.choice(_IDS), {"pid": draw.choice(_IDS), "tid": draw.choice(_IDS)}
    for event in _some(draw, document):
        document["traceEvents"].append(
            {**arrow, **place, "ph": draw.choice("sft"), "id": number, "ts": event.get("ts")}
        )


def _share_number(draw: _Draw, document: Document) -> None:
    """One number that calls and work are joined by for all of them."""
    name, number = draw.choice(["correlation", "External id", "stream"]), draw.choice([0, 1, -1])
    for event in _some(draw, document):
        _args(event)[name] = number


def _swap(draw: _Draw, document: Document) -> None:
    """What one event has in a field goes to another, of whatever kind."""
    events = [event for event in document["traceEvents"] if isinstance(event, dict)]
    field = draw.choice(["cat", "name", "tid", "pid", "args", "ts", "dur", "ph"])
    for _ in range(draw.choice([1, 5, 50])):
        if len(events) > 1:
            one, other = draw.sample(events, 2)
            one[field], other[field] = other.get(field), one.get(field)


def _put_foreign(draw: _Draw, document: Document) -> None:
    """What is no event among the events."""
    document["traceEvents"].insert(0, copy.deepcopy(draw.choice(VALUES)))


_STRUCTURE: list[Callable[[_Draw, Document], None]] = [
    *(_set_time, _set_time, _set_name, _set_category, _mark, _mark, _set_argument, _set_argument),
    *(_set_place, _set_anything, _set_header, _drop_field, _repeat_event, _nest, _halve),
    *(_move_memory, _launch, _launch, _put_foreign, _overlap, _overlap, _stretch, _shuffle),
    *(_flow, _share_number, _swap, _swap),
]
