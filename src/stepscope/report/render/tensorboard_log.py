"""A result as a TensorBoard log: curves of a run, the ladder, sweeps, and findings as text."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepscope.bench.results import LoaderPoint, bench_type
from stepscope.record.errors import MissingExtra
from stepscope.report.render.markdown import markdown
from stepscope.report.story.bench.groups import group_points
from stepscope.report.story.blocks import Story
from stepscope.report.story.phrases import PHASE_NAMES
from stepscope.results.load import LoadedResult

_SAMPLES = {
    "gpu_percent": "gpu/utilisation_percent",
    "gpu_power_w": "gpu/power_w",
    "gpu_sm_mhz": "gpu/clock_mhz",
    "gpu_temperature_c": "gpu/temperature_c",
    "gpu_memory_bytes": "gpu/memory_bytes",
    "cpu_percent": "host/cpu_percent",
    "rss_bytes": "host/memory_bytes",
}


class Scalar(NamedTuple):
    """One point of a curve."""

    tag: str
    step: int
    value: float | None
    """None: unknown, and left out."""


def write_log(subject: LoadedResult, story: Story, folder: Path) -> Path:
    """Write an event file into `folder`, created if missing; returns its path. Raises MissingExtra.

    Its name has no host name, and torch is not imported.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError:
        raise MissingExtra("tensorboard", "tensorboard", "a TensorBoard log") from None
    folder.mkdir(parents=True, exist_ok=True)
    now = time.time()
    path = folder / f"events.out.tfevents.{int(now)}.stepscope"
    with path.open("wb") as file:
        writer = RecordWriter(file)
        writer.write(Event(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for one in scalars(subject):
            value = Summary.Value(tag=one.tag, simple_value=one.value)
            event = Event(wall_time=now, step=one.step, summary=Summary(value=[value]))
            writer.write(event.SerializeToString())
        # For the text tab; TensorBoard removes dangerous markup itself.
        words = markdown(story).encode("utf-8", "replace")
        tensor = TensorProto(dtype=DT_STRING, string_val=[words])
        tensor.tensor_shape.dim.add(size=1)
        about = create_summary_metadata(display_name="report", description="")
        text = Summary.Value(tag="report/text_summary", tensor=tensor, metadata=about)
        event = Event(wall_time=now, summary=Summary(value=[text]))
        writer.write(event.SerializeToString())
        writer.flush()
    return path


def scalars(subject: LoadedResult) -> Iterator[Scalar]:
    """Every curve, finite values only."""
    read = {"run": _run, "tune": _tune, "bench": _bench, "trace": _trace, "batch": _batch}
    for one in read[subject.kind](subject):
        if one.value is not None and np.isfinite(one.value):
            yield one._replace(value=float(one.value))


def _run(subject: LoadedResult) -> Iterator[Scalar]:
    tables = subject.tables
    if tables is None:
        return
    if (steps := tables.steps) is not None:
        for at, took in enumerate(steps.done() / 1e6):
            yield Scalar("step/time_ms", at + 1, took)
            yield Scalar("loss", at + 1, steps.loss[at])
            for name, values in steps.host.items():
                label = PHASE_NAMES.get(name, name).replace(" ", "_")
                yield Scalar(f"phase/{label}_ms", at + 1, values[at] / 1e6)
    for column, tag in _SAMPLES.items():
        if column in (tables.samples.dtype.names or ()):
            for at, value in enumerate(tables.samples[column]):
                yield Scalar(tag, at, value)


def _tune(subject: LoadedResult) -> Iterator[Scalar]:
    document = subject.document
    yield Scalar("ladder/speedup_so_far", 0, 1.0)
    rows = [document["baseline"], *document["ladder"]]
    for at, row in enumerate(rows):
        yield Scalar("ladder/step_ms", at, row.get("step_ms"))
        yield Scalar("ladder/samples_per_s", at, row.get("samples_per_s"))
        if at:
            yield Scalar("ladder/speedup_so_far", at, row["cumulative"]["speedup"])
    for name, row in (("before", rows[0]), ("after", rows[-1])):
        for at, loss in enumerate(row.get("losses") or (), start=1):
            yield Scalar(f"loss/{name}", at, loss)


def _bench(subject: LoadedResult) -> Iterator[Scalar]:
    for group in group_points(subject.decoded(bench_type(subject.document)).points):
        for point in group.points:
            if isinstance(point, LoaderPoint):
                tag = f"loader/batch_{point.batch}/samples_per_s"
                yield Scalar(tag, point.workers, point.samples_per_s)
                continue
            where = f"{group.model}/{group.mode}_{group.device}/{point.variant}"
            yield Scalar(f"{where}/throughput", point.batch, point.throughput)
            yield Scalar(f"{where}/mean_ms", point.batch, point.mean_ms)


def _batch(subject: LoadedResult) -> Iterator[Scalar]:
    for row in subject.document["curve"]:
        yield Scalar("batch/samples_per_s", row["batch"], row["samples_per_s"])
        yield Scalar("batch/memory_bytes", row["batch"], row["memory_bytes"])


def _trace(subject: LoadedResult) -> Iterator[Scalar]:
    for at, step in enumerate(subject.document["steps"]["each"], start=1):
        yield Scalar("step/time_ms", at, (step["end_ns"] - step["start_ns"]) / 1e6)
