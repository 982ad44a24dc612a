"""What an analysis looks at grows with the events, not with events times depth."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.host_chain import host_chain, label_stretches
from stepscope.analyze.replay.model import model_of_trace
from stepscope.analyze.timeline.document import trace_analysis
from stepscope.analyze.timeline.steps import find_steps
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


class Compared(Counting):
    """A column that also counts the values that whole-column arithmetic looks at."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any) -> Any:
        Counting.taken += max(np.size(one) for one in inputs)
        plain = [np.asarray(one) if isinstance(one, Compared) else one for one in inputs]
        return getattr(ufunc, method)(*plain, **more)


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


def in_steps(count: int) -> Iterator[Event]:
    """Steps of a forward, two backwards and an optimizer."""
    for n in range(count):
        yield span("user_annotation", f"ProfilerStep#{n}", 100 * n, 99)
        yield from launched(n, 100 * n + 5)
        yield span("cpu_op", "aten::mm", 100 * n + 10, 5)
        yield span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 100 * n + 20, 5)
        yield span("cpu_op", "aten::mm", 100 * n + 30, 5)
        yield span("cpu_op", "autograd::engine::evaluate_function: MmBackward0", 100 * n + 40, 5)
        yield span("user_annotation", "Optimizer.step#SGD.step", 100 * n + 50, 20)


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


@pytest.mark.parametrize("shape", [nested, identical, on_threads, on_streams, in_steps])
def test_twice_the_events_are_about_twice_the_work(shape: Any, tmp_path: Path) -> None:
    """A factor of four would be quadratic; searching and sorting add a little to two."""
    few, many = (values_taken(tmp_path, shape(size)) for size in (1000, 2000))
    assert few > 10_000
    assert many < 2.6 * few


def steps_compared(folder: Path, count: int, per_step: int) -> int:
    """Values of the replay's step column that labelling its stretches looks at."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": list(in_steps(count))}))
    timeline = read_kineto(path, processes=1)
    steps = find_steps(timeline).steps[::per_step]
    chain = host_chain(timeline, steps[0].start_ns, steps[-1].end_ns)
    assert chain is not None
    step = chain.steps(np.array([one.start_ns for one in steps], np.int64))
    Counting.taken = 0
    label_stretches(timeline, chain, step.view(Compared), None)
    return Counting.taken


def test_replay_labels_twice_the_steps_with_twice_the_work(tmp_path: Path) -> None:
    few, many = (steps_compared(tmp_path, size, 1) for size in (500, 1000))
    assert few > 1000
    assert many < 2.6 * few


def test_replay_labels_as_many_stretches_in_few_steps_as_in_many(tmp_path: Path) -> None:
    few, many = (steps_compared(tmp_path, 1000, per_step) for per_step in (100, 1))
    assert many < 1.3 * few


@pytest.mark.parametrize("change", [changes.drop_launch_cost(), changes.fuse_optimizer()])
def test_replay_changes_twice_the_steps_with_twice_the_work(change: Any, tmp_path: Path) -> None:
    def looked_at(count: int) -> int:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(in_steps(count))}))
        tasks = model_of_trace(read_kineto(path, processes=1)).tasks
        host, work = (
            replace(one, step=one.step.view(Compared)) for one in (tasks.host, tasks.work)
        )
        Counting.taken = 0
        change(replace(tasks, host=host, work=work))
        return Counting.taken

    few, many = looked_at(200), looked_at(400)
    assert few >= 200
    assert many < 2.6 * few


def test_replay_orders_the_work_of_twice_the_streams_with_twice_the_work(tmp_path: Path) -> None:
    def looked_at(count: int) -> int:
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(on_streams(count))}))
        timeline = read_kineto(path, processes=1)
        stream = timeline.device.stream.view(Compared)
        model = model_of_trace(replace(timeline, device=replace(timeline.device, stream=stream)))
        Counting.taken = 0
        model_of_trace(replace(timeline, device=replace(timeline.device, stream=stream)))
        model.changed(changes.merge_kernels(lambda tasks: np.ones(len(tasks.work), bool)))
        return Counting.taken

    few, many = looked_at(300), looked_at(600)
    assert few >= 300
    assert many < 2.6 * few
