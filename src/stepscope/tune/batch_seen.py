"""What a trial's run folder tells about the program besides its speed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError
from stepscope.tune.feed import rounds_of

Document = Mapping[str, Any]
NO_LOADER = "no DataLoader of the program forms batches: their size cannot be changed from outside"


@dataclass(frozen=True, slots=True)
class Seen:
    """The program as it is. None: not known."""

    device: str
    """cuda or cpu."""
    device_name: str | None
    memory_bytes: float | None
    """Of the GPU, or what is free for the program on the CPU's side."""
    batch: int
    """Of the loader that feeds its steps."""
    samples: int | None
    """In an epoch."""
    drop_last: bool
    buffer: int
    """Steps fed by what the loader's workers keep ready."""
    optimizers: tuple[tuple[str, float | None], ...]
    """Name and learning rate."""


def see(folder: Path, available_bytes: float | None) -> Seen:
    """Read a run folder. `available_bytes`: memory that was free before the program started.

    Raises UsageError where the program forms no batches.
    """
    from stepscope.analyze.summary import summarize

    return seen(summarize(folder), available_bytes)


def seen(document: Document, available_bytes: float | None) -> Seen:
    """The same from a run's document."""
    loader = feeding(document["loaders"], document["steps"]["samples_per_step"])
    gpu = document["gpu"]
    cpu = document["config"]["machine"].get("cpu") or {}
    optimizers = ((one["name"], one.get("lr")) for one in document["config"]["optimizers"])
    return Seen(
        device="cuda" if gpu else "cpu",
        device_name=gpu["name"] if gpu else cpu.get("model"),
        memory_bytes=gpu["total_bytes"] if gpu else available_bytes,
        batch=loader["batch_size"],
        samples=loader.get("samples"),
        drop_last=bool(loader.get("drop_last")),
        buffer=rounds_of(loader["num_workers"] or 0, loader["prefetch_factor"]),
        optimizers=tuple(dict.fromkeys(optimizers)),
    )


def feeding(loaders: Sequence[Document], samples_per_step: float | None) -> Document:
    """The loader that feeds the steps: whose batches are as large as a step's, else the one that
    shuffles, else the one with most samples. Raises UsageError."""
    forming = [one for one in loaders if (one.get("batch_size") or 0) > 1]
    if not forming:
        one_by_one = any(one.get("batch_size") == 1 for one in loaders)
        raise UsageError(
            "the program's DataLoader gives samples one by one: give it a batch size first"
            if one_by_one
            else NO_LOADER
        )

    def likely(one: Document) -> tuple[bool, bool, float]:
        alike = abs((samples_per_step or 0.0) / one["batch_size"] - 1) < 0.1
        return alike, bool(one.get("shuffle")), one.get("samples") or 0.0

    return max(forming, key=likely)


def available() -> float | None:
    """Bytes that a program started now can have without pushing others out, on the CPU's side."""
    from stepscope.hardware.machine import describe_memory

    memory = describe_memory()
    return float(min(memory["available_bytes"], memory["limit_bytes"] or memory["total_bytes"]))
