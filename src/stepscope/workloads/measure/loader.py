"""Measures how many samples per second a DataLoader delivers once its workers are running: its
dataset (a workload's or the user's), where batches go, and the clock.
"""

import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, IterableDataset, default_collate

from stepscope.record.errors import UsageError
from stepscope.workloads.arguments import ProgramArguments
from stepscope.workloads.catalogue import find_workload
from stepscope.workloads.models.from_user import import_user_module, one_line_error

_CYCLES: Final = 3  # least number of full prefetch queues in a section
_SAMPLES: Final = 2048  # samples of a workload, by default
_PATIENCE: Final = 5  # times the requested seconds, after which fewer cycles must do


@dataclass(slots=True)
class Delivered:
    """Batches delivered to the device in the steady section; times in seconds."""

    first_s: float  # from the beginning of the iteration to the first batch
    warmup: int  # batches left out before the section
    started_ns: int = 0  # ends of the section, CLOCK_MONOTONIC
    ended_ns: int = 0
    elapsed_s: float = 0.0
    calls: int = 0  # batches
    samples: int = 0
    gaps_s: list[float] = field(default_factory=list)  # between batches


def deliver(
    batches: Iterator[Any],
    take: Callable[[Any], int],
    wait: Callable[[], None],
    *,
    workers: int,
    prefetch: int,
    seconds: float,
    on_first: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Delivered:
    """Take batches until a section of `seconds` is over; `take` gives the samples in one. Workers
    deliver in bursts of one batch each: a section begins and ends with such a round and covers
    several queue lengths. Batches that queue up while `on_first` runs (at the first batch) are
    taken before the section."""
    turn = max(1, workers)
    queue = max(1, workers * prefetch)
    began = clock()
    take(next(batches))
    wait()
    found = Delivered(first_s=clock() - began, warmup=1)
    on_first()
    while found.warmup < queue + 2 * turn or found.warmup % turn:
        take(next(batches))
        found.warmup += 1
    wait()
    found.started_ns = time.monotonic_ns()
    start = last = clock()
    while True:
        found.samples += take(next(batches))
        found.calls += 1
        now = clock()
        found.gaps_s.append(now - last)
        last = now
        if found.calls % turn or now - start < seconds:
            continue
        if found.calls >= max(5, _CYCLES * queue) or now - start >= _PATIENCE * seconds:
            break
    wait()
    found.elapsed_s = clock() - start
    found.ended_ns = time.monotonic_ns()
    return found


def repeat_forever(batches: Iterable[Any]) -> Iterator[Any]:
    """Epoch after epoch; a stream that ends is restarted."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise RuntimeError("the loader yields no batches")


def ms_per_round(gaps_s: list[float], workers: int, most: int = 500) -> list[float]:
    """Mean milliseconds per batch in each round of all workers; rounds are merged if too many."""
    turn = max(1, workers)
    turn *= -(-len(gaps_s) // (turn * most))
    whole = len(gaps_s) // turn * turn
    return [sum(gaps_s[at : at + turn]) / turn * 1e3 for at in range(0, whole, turn)]


class BatchTarget:
    """Where batches go. Copies from pinned memory run in parallel to the loader, one at a time."""

    def __init__(self, device: torch.device, pinned: bool, batch: int) -> None:
        self._device = device
        self._pinned = pinned
        self._batch = batch
        self._copies: list[Any] = []  # events that end the current copies
        if self._device.type == "cuda":
            torch.zeros(1, device=self._device)
            self._mark()
            self.wait()

    def take(self, batch: Any) -> int:
        """Move a batch, after waiting for the previous one. Returns its number of samples."""
        moved = tree_map_only(
            Tensor, lambda part: part.to(self._device, non_blocking=self._pinned), batch
        )
        if self._device.type == "cuda":
            self._mark()
            if len(self._copies) > 1:
                self._copies.pop(0).synchronize()
        first = next(iter(tensors(moved)), None)
        return int(first.shape[0]) if first is not None and first.dim() else self._batch

    def wait(self) -> None:
        """Wait until everything has arrived."""
        while self._copies:
            self._copies.pop(0).synchronize()

    def _mark(self) -> None:
        event = torch.cuda.Event()
        event.record()
        self._copies.append(event)


def tensors(batch: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]


@dataclass(frozen=True, slots=True)
class LoaderSource:
    """What to load. `samples` is None for a stream, `collate` None for the default."""

    dataset: Any
    samples: int | None
    collate: Callable[[list[Any]], Any] | None


def loader_source(asked: ProgramArguments) -> LoaderSource:
    """The workload's data, or the user's. Raises UsageError if there is none."""
    workload = find_workload(asked.model)
    if workload.task == "user":
        try:
            found = getattr(import_user_module(workload), workload.options["factory"])
            if inspect.isclass(found) or inspect.isroutine(found):
                found = found()
        except Exception as problem:
            raise UsageError(f"{workload.name}: {one_line_error(problem)}") from None
        return check_dataset(workload.name, found)
    from stepscope.workloads.data.tasks import make_task
    from stepscope.workloads.measure.inputs import data_options

    pictures = workload.task in ("images", "segmentation")
    size = asked.size or workload.size
    if not (size if pictures else workload.length and workload.vocabulary):
        from stepscope.workloads.models.build import build_model  # only the model can tell

        workload = build_model(workload, size=asked.size).workload
    workload = replace(workload, size=asked.size or workload.size)
    task = make_task(workload, data_options(asked, asked.samples or _SAMPLES, 1))
    return check_dataset(asked.model, task.train)


def check_dataset(name: str, found: Any) -> LoaderSource:
    """A source from something that should be a dataset. Raises UsageError if it is not one."""
    collate = None
    if isinstance(found, DataLoader):
        found, collate = found.dataset, found.collate_fn
    if isinstance(found, IterableDataset):
        return LoaderSource(found, None, collate)
    for method in ("__getitem__", "__len__"):
        if not hasattr(found, method):
            raise UsageError(
                f"{name}: {type(found).__name__} is not a Dataset (no {method}):"
                " name a Dataset or a function that returns one"
            )
    if not len(found):
        raise UsageError(f"{name}: the dataset is empty")
    return LoaderSource(found, len(found), collate)


def sample_bytes(name: str, source: LoaderSource) -> int:
    """Bytes of one sample. Raises UsageError if samples cannot be loaded or collated."""
    try:
        item = next(iter(source.dataset)) if source.samples is None else source.dataset[0]
    except Exception as problem:
        raise UsageError(f"{name}: the first sample fails: {one_line_error(problem)}") from None
    try:
        batch = (source.collate or default_collate)([item, item])
    except Exception as problem:
        raise UsageError(f"{name}: samples cannot be collated: {one_line_error(problem)}") from None
    return sum(int(part.nbytes) for part in tensors(batch)) // 2
