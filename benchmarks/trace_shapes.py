"""What a trace costs by its shape: seconds and memory per million events, side by side in one run.

python benchmarks/trace_shapes.py [--most 1000000] [--shape deep ...]

Each shape is read and analysed whole, in a process of its own, at growing sizes. Where the cost
grows linearly, a row's seconds per million events stay the same (below 30,000 events what is paid
once weighs more).
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _about import about

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "src"))

RESULTS = HERE / "results" / "trace-shapes.json"
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
Event = dict[str, Any]


def _host(start: float, length: float, category: str = "cpu_op", **more: Any) -> Event:
    event = {"ph": "X", "cat": category, "name": "aten::mm", "pid": 1, "tid": 1}
    return event | {"ts": start, "dur": length} | more


def _work(number: int, start: float, thread: int = 1, device: int = 0, **more: Any) -> list[Event]:
    """A call and the kernel that it launches."""
    args = {"correlation": number + 1, "device": device, "stream": 7} | more
    call = {"name": "cudaLaunchKernel", "tid": thread, "args": {"correlation": number + 1}}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": start + 8, "dur": 5.0}
    return [_host(start, 2.0, "cuda_runtime", **call), kernel | {"args": args}]


def _deep(size: int) -> Iterator[Event]:
    """Calls inside each other, each the only one of its caller."""
    for n in range(size):
        yield _host(float(n), 2.0 * (size - n), "python_function", name=f"a.py({n % 9}): f")


def _deep_with_kernels(size: int) -> Iterator[Event]:
    """The same, and kernels launched from the depth and on the way back."""
    half = size // 2
    yield from _deep(half)
    for n in range(size // 4):
        yield from _work(n, half + n * half / (size // 4) + 0.25)


def _identical(size: int) -> Iterator[Event]:
    for _ in range(size):
        yield _host(100.0, 50.0)


def _identical_kernels(size: int) -> Iterator[Event]:
    for _ in range(size // 2):
        yield from _work(0, 100.0)


def _many(what: str) -> Callable[[int], Iterator[Event]]:
    """Launches and kernels, each on a thread, stream or device, or by a name, of its own."""

    def made(size: int) -> Iterator[Event]:
        for n in range(size // 2):
            call, kernel = _work(n, 10.0 * n)
            if what == "threads":
                call["tid"] = n
            elif what == "names":
                kernel["name"] = f"kernel_{n}"
            elif what == "copies":
                kernel |= {"cat": "gpu_memcpy", "name": f"Memcpy HtoD (Pageable -> Device) {n}"}
            else:
                kernel["args"][what.removesuffix("s")] = n
            yield call
            yield kernel

    return made


def _memory(size: int) -> Iterator[Event]:
    """Allocations, each on a device of its own as far as there are numbers for them."""
    for n in range(size):
        args = {"Bytes": 64, "Device Type": 1, "Device Id": n % 30_000, "Addr": n}
        yield {"ph": "i", "name": "[memory]", "pid": 1, "tid": 1, "ts": float(n), "args": args}


def _steps(size: int) -> Iterator[Event]:
    """Steps of one launch each."""
    for n in range(size // 3):
        name = f"ProfilerStep#{n}"
        yield _host(10.0 * n, 9.0, "user_annotation", name=name)
        yield from _work(n, 10.0 * n + 1)


def _usual(size: int) -> Iterator[Event]:
    """Operators in operators, each with a kernel, in steps of 100."""
    for n in range(size // 5):
        start = 20.0 * n
        if n % 100 == 0:
            name = f"ProfilerStep#{n // 100}"
            yield _host(start, 1999.0, "user_annotation", name=name)
        yield _host(start + 0.5, 12.0, name="aten::linear")
        yield _host(start + 1.0, 10.0)
        yield from _work(n, start + 2.0)


def _training(count: int) -> Callable[[int], Iterator[Event]]:
    """So many steps of training at most, one for ten events, of as many layers as fit."""

    def made(size: int) -> Iterator[Event]:
        steps = min(count, size // 10)
        layers, now, number = max(1, (size // steps - 8) // 7), 0.0, 0
        for step in range(steps):
            begun, now = now, now + 1
            yield _host(now, 5.0, "user_annotation", name="enumerate(DataLoader)#_next")
            yield _host(now + 6, 4.0, name="aten::copy_")
            call, copy = _work(number := number + 1, now + 7)
            yield call | {"name": "cudaMemcpyAsync"}
            yield copy | {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)"}
            now += 20
            for layer in range(layers):
                yield _host(now, 9.0, name="aten::linear")
                yield _host(now + 1, 7.0, name=f"aten::{'mm' if layer % 3 else 'relu'}")
                yield from _work(number := number + 1, now + 2)
                now += 10
            for _ in range(layers):
                name = "autograd::engine::evaluate_function: MmBackward0"
                yield _host(now, 9.0, name=name, tid=2)
                yield from _work(number := number + 1, now + 2, 2)
                now += 10
            yield _host(now, 9.0, "user_annotation", name="Optimizer.step#SGD.step")
            yield from _work(number := number + 1, now + 2)
            now += 10
            yield _host(begun, now - begun, "user_annotation", name=f"ProfilerStep#{step}")
            now += 1

    return made


SHAPES: dict[str, Callable[[int], Iterator[Event]]] = {
    "usual": _usual,
    "deep": _deep,
    "deep with kernels": _deep_with_kernels,
    "identical": _identical,
    "identical kernels": _identical_kernels,
    "many threads": _many("threads"),
    "many streams": _many("streams"),
    "many devices": _many("devices"),
    "many names": _many("names"),
    "many copies": _many("copies"),
    "memory of many devices": _memory,
    "many steps": _steps,
    "training in 10 steps": _training(10),
    "training in 1,000 steps": _training(1000),
    "training in 10,000 steps": _training(10_000),
    "training in 100,000 steps": _training(100_000),
}


def write_trace(shape: str, size: int, path: Path) -> None:
    """A trace of so many events."""
    with path.open("w") as file:
        file.write('{"traceEvents":[')
        for number, event in enumerate(SHAPES[shape](size)):
            file.write(f"{',' if number else ''}{json.dumps(event)}\n")
        file.write("]}")


def _measured(path: Path) -> dict[str, float]:
    """Seconds of reading and of analysis, and the memory they took, in a fork."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        from stepscope.results.load import Trace

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.process_time()
        trace = Trace(path)
        events = trace.recording.quality.kept
        read = time.process_time()
        _ = trace.document
        found = {
            "events": events,
            "read_s": round(read - began, 3),
            "analyze_s": round(time.process_time() - read, 3),
            "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10,
        }
        os.write(sending, json.dumps(found).encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    told: dict[str, float] = json.loads(text) if text else {}
    return told


def table(document: dict[str, Any]) -> str:
    """Seconds per million events by shape and size."""
    rows = document["shapes"]
    sizes = sorted({one["size"] for one in rows})
    lines = [
        "| s per million events | " + " | ".join(f"{size:,}" for size in sizes) + " | B/event |"
    ]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for shape in dict.fromkeys(one["shape"] for one in rows):
        own = {one["size"]: one for one in rows if one["shape"] == shape}
        cells = [
            f"{(own[n]['read_s'] + own[n]['analyze_s']) / own[n]['events'] * 1e6:.1f}"
            if n in own and own[n].get("events")
            else "–"
            for n in sizes
        ]
        last = own[max(own)]
        each = f"{last['mb'] * 2**20 / last['events']:,.0f}" if last.get("events") else "–"
        lines.append(f"| {shape} | {' | '.join(cells)} | {each} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--most", type=int, default=SIZES[-1], help="events")
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    import stepscope.results.load  # noqa: F401  (imported before the forks)

    document = about("stepscope.trace-shapes/1", "trace_shapes.py") | {"shapes": []}
    if options.out.exists():  # shapes that are not measured again stay
        known = json.loads(options.out.read_text())["shapes"]
        document["shapes"] = [one for one in known if one["shape"] not in options.shape]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        for shape in options.shape:
            for size in (size for size in SIZES if size <= options.most):
                write_trace(shape, size, path)
                document["shapes"].append({"shape": shape, "size": size, **_measured(path)})
                print(document["shapes"][-1], flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    print(table(document), end="")


if __name__ == "__main__":
    main()
