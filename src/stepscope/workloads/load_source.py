"""The data set a loader is measured on: a workload's own, or one of the user's files or modules."""

import inspect
import re
import traceback
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import find
from stepscope.workloads.user_code import module_of
from stepscope.workloads.workload import Workload

_PLACE: Final = re.compile(r'File "(.+)", line (\d+)')


@dataclass(frozen=True, slots=True)
class Source:
    """What to load. `samples` is None for a stream, `collate` None for the loader's own way."""

    dataset: Any
    samples: int | None
    collate: Callable[[list[Any]], Any] | None


def source_of(options: Namespace) -> Source:
    """The workload's data, or the user's. Raises UsageError where there is none to be had."""
    workload = find(options.model)
    if workload.task == "given":
        return _users(workload)
    from stepscope.workloads.tasks import DataOptions, make_task

    data = DataOptions(
        samples=options.samples,
        test_samples=1,
        seed=options.seed,
        decode_ms=options.decode_ms,
        resize=options.resize,
        latency_ms=options.latency_ms,
        disk_mb_per_s=options.disk_mb_s,
    )
    task = make_task(workload, _shape(workload, options.size), data)
    return checked(options.model, task.train)


def _shape(workload: Workload, size: int | None) -> Any:
    """What the workload's samples look like; where only its model can tell, that is built."""
    from stepscope.workloads.tasks import Shape

    def known(one: Workload) -> Any:
        return Shape(size or one.size, one.classes, one.length, one.vocabulary)

    shape = known(workload)
    pictures = workload.task in ("images", "segmentation")
    if shape.size if pictures else shape.length and shape.vocabulary:
        return shape
    from stepscope.workloads.build import build

    return known(build(workload, size=size).workload)


def _users(workload: Workload) -> Source:
    """The data set, or DataLoader, that the user's name stands for. Raises UsageError."""
    name = workload.options["factory"]
    try:
        found = getattr(module_of(workload), name)
        if inspect.isclass(found) or inspect.isroutine(found):
            found = found()
    except Exception as problem:
        raise UsageError(f"{workload.name}: {told(problem)}") from None
    return checked(workload.name, found)


def checked(name: str, found: Any) -> Source:
    """The parts of something that should be a data set. Raises UsageError where it is none."""
    from torch.utils.data import DataLoader, IterableDataset

    collate = None
    if isinstance(found, DataLoader):
        found, collate = found.dataset, found.collate_fn
    if isinstance(found, IterableDataset):
        return Source(found, None, collate)
    for method in ("__getitem__", "__len__"):
        if not hasattr(found, method):
            kind = type(found).__name__
            raise UsageError(f"{name}: a {kind} has no {method}: name a Dataset, or what makes one")
    if not len(found):
        raise UsageError(f"{name}: the data set is empty")
    return Source(found, len(found), collate)


def sample_bytes(name: str, source: Source) -> int:
    """Bytes of one sample; raises UsageError where samples cannot be had or put together."""
    try:
        samples = source.dataset if source.samples is None else (source.dataset[0],)
        item = next(iter(samples))
    except Exception as problem:
        raise UsageError(f"{name}: the first sample fails: {told(problem)}") from None
    from torch.utils.data import default_collate

    try:
        batch = (source.collate or default_collate)([item, item])
    except Exception as problem:
        raise UsageError(f"{name}: samples make no batch: {told(problem)}") from None
    from stepscope.workloads.load_device import size_of

    return size_of(batch) // 2


def told(problem: BaseException) -> str:
    """An exception in one line, with the last place in it that is not the library's or ours."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if lines and lines[0].startswith("Caught ") and len(lines) > 1:  # in a worker, with its trace
        text, places = lines[-1], [(m[1], m[2]) for line in lines if (m := _PLACE.match(line))]
    else:
        text = f"{type(problem).__name__}: {lines[0]}" if lines else type(problem).__name__
        frames = traceback.extract_tb(problem.__traceback__)
        places = [(frame.filename, str(frame.lineno)) for frame in frames]
    users_own = [f"{Path(file).name}:{line}" for file, line in places if not _is_library(file)]
    return f"{text} ({users_own[-1]})" if users_own else text


def _is_library(file: str) -> bool:
    ours = str(Path(__file__).parent)
    libraries = ("site-packages", "dist-packages", "<frozen", f"{Path(inspect.__file__).parent}/")
    return file.startswith(ours) or any(part in file for part in libraries)
