"""What an analysis looks at grows with the events, not with events times depth."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analyze.timeline.document import trace_analysis
from stepscope.trace.kineto.read import read_kineto

Event = dict[str, Any]


class Counting(np.ndarray):
    """A column that counts the values taken from it, and from what is made of it."""

    taken = 0

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        Counting.taken += np.size(found)
        return found

    def item(self, *key: Any) -> Any:
        Counting.taken += 1
        return super().item(*key)


def span(category: str, name: str, start: float, length: float, **args: Any) -> Event:
    event = {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "args": args}
    return event | {"ts": start, "dur": length}


def launched(number: int, start: float) -> Iterator[Event]:
    yield span("cuda_runtime", "cudaLaunchKernel", start, 0.2, correlation=number)
    yield span("kernel", "gemm", start + 30, 0.1, correlation=number, device=0, stream=7)


def nested(depth: int) -> Iterator[Event]:
    """Calls inside each other, and kernels launched on the way back."""
    for n in range(depth):
        yield span("python_function", f"train.py({n % 7}): f", n, 200 * depth - 100 * n)
    for n in range(depth):
        yield from launched(n, 100 * depth + 100 * n + 50)


def identical(count: int) -> Iterator[Event]:
    for n in range(count):
        yield span("cpu_op", "aten::mm", 10, 50)
        yield from launched(n, 20)


def on_threads(count: int) -> Iterator[Event]:
    for n in range(count):
        for event in launched(n, 100 * n):
            yield event | ({"tid": n} if event["cat"] == "cuda_runtime" else {})


def on_streams(count: int) -> Iterator[Event]:
    for n in range(count):
        yield span("cuda_runtime", "cudaStreamWaitEvent", 100 * n, 1)
        for event in launched(n, 100 * n + 2):
            yield event | {"args": event["args"] | {"stream": n}}


def values_taken(folder: Path, events: Iterator[Event]) -> int:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(events)}))
    timeline = read_kineto(path, processes=1)
    tables = {
        name: replace(
            table, **{n: getattr(table, n).view(Counting) for n in ("start", "duration", *more)}
        )
        for name, table, more in (
            ("host", timeline.host, ("parent", "thread", "name")),
            ("device", timeline.device, ("launch", "stream", "name")),
        )
    }
    Counting.taken = 0
    trace_analysis(replace(timeline, **tables))
    return Counting.taken


@pytest.mark.parametrize("shape", [nested, identical, on_threads, on_streams])
def test_twice_the_events_are_about_twice_the_work(shape: Any, tmp_path: Path) -> None:
    """A factor of four would be quadratic; searching and sorting add a little to two."""
    few, many = (values_taken(tmp_path, shape(size)) for size in (1000, 2000))
    assert few > 10_000
    assert many < 2.6 * few
