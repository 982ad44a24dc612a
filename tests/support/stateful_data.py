"""Small programs whose samples depend on something that changes: each gets `load`, which makes a
DataLoader of a dataset, goes through three epochs, and returns what it saw."""

import collections
import ctypes
import functools
import itertools
import multiprocessing
import os
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

Load = Callable[..., Any]
Program = Callable[[Load], list[Any]]
PROGRAMS: dict[str, Program] = {}
COUNT, EPOCHS = 8, 3


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def seen_in(loader: Any, after_batch: Callable[[Any], None] | None = None) -> list[Any]:
    """An epoch's batches, as the program saw them."""
    seen = []
    for batch in loader:
        for part in batch if isinstance(batch, list) else [batch]:
            seen.append(part.clone())
            part.to("meta")  # where moving early is tried
        if after_batch is not None:
            after_batch(batch)
    return seen


def between_epochs(loader: Any, change: Callable[[int], None]) -> list[Any]:
    """Three epochs; `change(epoch)` before each."""
    seen = []
    for epoch in range(EPOCHS):
        change(epoch)
        seen += seen_in(loader)
    return seen


def between_batches(loader: Any, change: Callable[[int], None]) -> list[Any]:
    """Three epochs; `change(count)` after each batch."""
    count = itertools.count(1)
    return [x for _ in range(EPOCHS) for x in seen_in(loader, lambda _: change(next(count)))]


def plain_epochs(loader: Any) -> list[Any]:
    return [x for _ in range(EPOCHS) for x in seen_in(loader)]


class Made(Dataset):
    """`sample(self, index)` is what is made of an index; `held` are attributes."""

    def __len__(self):
        return COUNT

    def __init__(self, **held):
        vars(self).update(held)


def dataset(sample, **held):
    """A dataset whose samples are `sample(self, index)`."""
    return type("Made", (Made,), {"__getitem__": sample})(**held)


def number(value):
    return torch.tensor(float(value))


SCALE = 1.0
NAMES: list[Any] = []
CONFIG: dict[str, Any] = {}
SPACE = types.SimpleNamespace(scale=1.0)


@program
def global_rebound(load):
    def change(epoch):
        global SCALE
        SCALE = epoch + 1.0

    return between_epochs(load(dataset(lambda self, i: number(i * SCALE))), change)


@program
def global_rebound_in_an_epoch(load):
    def change(count):
        global SCALE
        SCALE = float(count)

    change(0)
    return between_batches(load(dataset(lambda self, i: number(i * SCALE))), change)


@program
def global_list(load):
    NAMES[:] = [1.0] * COUNT

    def change(epoch):
        NAMES[3] = epoch

    return between_epochs(load(dataset(lambda self, i: number(NAMES[i]))), change)


@program
def long_global_list(load):
    NAMES[:] = map(float, range(1000))

    def change(epoch):
        NAMES[997] = epoch

    return between_epochs(load(dataset(lambda self, i: number(NAMES[990 + i]))), change)


@program
def nested_global(load):
    CONFIG["a"] = {"b": [[0.0]]}

    def change(epoch):
        CONFIG["a"]["b"][0][0] = epoch

    return between_epochs(load(dataset(lambda self, i: number(i + CONFIG["a"]["b"][0][0]))), change)


@program
def attribute_of_a_global(load):
    def change(epoch):
        SPACE.scale = epoch

    return between_epochs(load(dataset(lambda self, i: number(i * SPACE.scale))), change)


@program
def environment(load):
    def change(epoch):
        os.environ["EXACTNESS_SCALE"] = str(epoch)

    change(0)
    made = dataset(lambda self, i: number(i * float(os.environ["EXACTNESS_SCALE"])))
    return between_epochs(load(made), change)


class Graded(Made):
    scale = 1.0
    table = {"x": [0.0]}  # noqa: RUF012

    def __getitem__(self, i):
        return number(i * self.scale + self.table["x"][0])


class MoreGraded(Graded):
    pass


@program
def class_attribute(load):
    def change(epoch):
        Graded.scale = epoch

    return between_epochs(load(Graded()), change)


@program
def class_attribute_of_a_base(load):
    def change(epoch):
        Graded.scale = epoch

    return between_epochs(load(MoreGraded()), change)


@program
def container_of_a_class(load):
    def change(epoch):
        Graded.table["x"][0] = epoch

    return between_epochs(load(Graded()), change)


@program
def enclosing_variable(load):
    scale = 1.0

    def change(epoch):
        nonlocal scale
        scale = epoch

    return between_epochs(load(dataset(lambda self, i: number(i * scale))), change)


@program
def enclosing_list(load):
    scales = [1.0]

    def change(epoch):
        scales[0] = epoch

    made = dataset(lambda self, i: self.transform(i), transform=lambda i: number(i * scales[0]))
    return between_epochs(load(made), change)


@program
def default_argument(load):
    scales = [1.0]

    def sample(self, i, scales=scales):
        return number(i * scales[0])

    def change(epoch):
        scales[0] = epoch

    return between_epochs(load(dataset(sample)), change)


@program
def partial_argument(load):
    scales = [1.0]

    def change(epoch):
        scales[0] = epoch

    made = dataset(
        lambda self, i: self.transform(i=i),
        transform=functools.partial(lambda scales, i: number(i * scales[0]), scales),
    )
    return between_epochs(load(made), change)


@program
def property_of_a_global(load):
    class Scaled(Made):
        @property
        def scale(self):
            return SPACE.scale

        def __getitem__(self, i):
            return number(i * self.scale)

    def change(epoch):
        SPACE.scale = epoch

    return between_epochs(load(Scaled()), change)


def _held(change, sample, in_epoch=False, **held):
    """A dataset with attributes, and how the program changes them."""

    def run(load):
        made = dataset(sample, **{name: make() for name, make in held.items()})
        go = between_batches if in_epoch else between_epochs
        return go(load(made), lambda count: change(made, count))

    return run


def _set(owner, name, value):
    setattr(owner, name, value)


def _put(container, key, value):
    container[key] = value


@dataclass(slots=True)
class Slotted:
    scale: float = 1.0


def _ones():
    model = torch.nn.Linear(1, 1)
    model.weight.data.fill_(1)
    return model


LARGE = 300_000
HELD = {
    "attribute": _held(lambda d, e: _set(d, "k", e), lambda s, i: number(i * s.k), k=float),
    "attribute_in_an_epoch": _held(
        lambda d, e: _set(d, "k", e), lambda s, i: number(i * s.k), True, k=float
    ),
    "attribute_of_an_attribute": _held(
        lambda d, e: _set(d.inner, "scale", e),
        lambda s, i: number(i * s.inner.scale),
        inner=Slotted,
    ),
    "nested_container": _held(
        lambda d, e: _put(d.k["x"][3], 0, e),
        lambda s, i: number(i * s.k["x"][3][0]),
        k=lambda: {"x": [[0.0] for _ in range(4)]},
    ),
    "long_list": _held(
        lambda d, e: _put(d.k, 403, e),
        lambda s, i: number(s.k[400 + i]),
        k=lambda: list(map(float, range(500))),
    ),
    "long_list_of_lists": _held(
        lambda d, e: _put(d.k[203], 0, e),
        lambda s, i: number(s.k[200 + i][0]),
        k=lambda: [[float(i)] for i in range(300)],
    ),
    "long_dictionary": _held(
        lambda d, e: _put(d.k, 203, e),
        lambda s, i: number(s.k[200 + i]),
        k=lambda: {i: float(i) for i in range(300)},
    ),
    "labels": _held(
        lambda d, e: _put(d.k, 3, e), lambda s, i: number(s.k[i]), k=lambda: np.zeros(COUNT)
    ),
    "labels_in_an_epoch": _held(
        lambda d, e: _put(d.k, slice(None), e),
        lambda s, i: number(s.k[i]),
        True,
        k=lambda: np.zeros(COUNT),
    ),
    "many_labels": _held(
        lambda d, e: _put(d.k, 3, e), lambda s, i: number(s.k[i]), k=lambda: np.zeros(LARGE)
    ),
    "many_labels_in_an_epoch": _held(
        lambda d, e: _put(d.k, slice(None), e),
        lambda s, i: number(s.k[i]),
        True,
        k=lambda: np.zeros(LARGE),
    ),
    "strided_labels": _held(
        lambda d, e: _put(d.k, 3, e),
        lambda s, i: number(s.k[i]),
        k=lambda: np.zeros((COUNT, 3))[:, 1],
    ),
    "array_of_objects": _held(
        lambda d, e: _put(d.k, 3, e),
        lambda s, i: number(s.k[i]),
        k=lambda: np.array([1.0] * COUNT, dtype=object),
    ),
    "tensor": _held(lambda d, e: d.k.add_(1), lambda s, i: s.k[i] * 2, k=lambda: torch.arange(8.0)),
    "tensor_through_numpy": _held(
        lambda d, e: _put(d.k.numpy(), 3, e), lambda s, i: s.k[i] * 2, k=lambda: torch.zeros(COUNT)
    ),
    "shared_tensor_in_an_epoch": _held(
        lambda d, e: d.k.fill_(e),
        lambda s, i: s.k[i] * 2,
        True,
        k=lambda: torch.zeros(COUNT).share_memory_(),
    ),
    "bytes": _held(
        lambda d, e: _put(d.k, 3, e), lambda s, i: number(s.k[i]), k=lambda: bytearray(COUNT)
    ),
    "shared_value": _held(
        lambda d, e: _set(d.k, "value", e),
        lambda s, i: number(i * s.k.value),
        k=lambda: multiprocessing.Value("d", 1.0),
    ),
    "shared_value_in_an_epoch": _held(
        lambda d, e: _set(d.k, "value", e),
        lambda s, i: number(i * s.k.value),
        True,
        k=lambda: multiprocessing.Value("d", 1.0),
    ),
    "shared_array": _held(
        lambda d, e: _put(d.k, 3, e),
        lambda s, i: number(s.k[i]),
        k=lambda: multiprocessing.Array("d", COUNT),
    ),
    "raw_value": _held(
        lambda d, e: _set(d.k, "value", e), lambda s, i: number(i * s.k.value), k=ctypes.c_double
    ),
    "event": _held(
        lambda d, e: d.k.set() if e else None,
        lambda s, i: number(i * s.k.is_set()),
        k=multiprocessing.Event,
    ),
    "transform": _held(
        lambda d, e: _set(d, "k", lambda x: x + e), lambda s, i: s.k(number(i)), k=lambda: abs
    ),
    "list_of_transforms": _held(
        lambda d, e: d.k.append(torch.exp),
        lambda s, i: functools.reduce(lambda x, f: f(x), s.k, number(i)),
        k=lambda: [torch.abs],
    ),
    "replay_buffer": _held(
        lambda d, e: d.k.append(float(e)),
        lambda s, i: number(s.k[-1 - i % len(s.k)]),
        k=lambda: collections.deque([0.0], maxlen=4),
    ),
    "replay_buffer_in_an_epoch": _held(
        lambda d, e: d.k.append(float(e)),
        lambda s, i: number(s.k[-1 - i % len(s.k)]),
        True,
        k=lambda: collections.deque([0.0], maxlen=4),
    ),
    "model_inside": _held(
        lambda d, e: d.k.weight.data.fill_(e),
        lambda s, i: (number(i) * s.k.weight).detach().flatten(),
        True,
        k=_ones,
    ),
}
PROGRAMS |= HELD


@program
def subset_indices(load):
    subset = Subset(dataset(lambda self, i: number(i)), list(range(COUNT)))
    return between_epochs(load(subset), lambda epoch: _put(subset.indices, 0, epoch))


@program
def part_of_a_concatenation(load):
    parts = [Graded(), MoreGraded()]
    return between_epochs(load(ConcatDataset(parts)), lambda epoch: _set(parts[1], "scale", epoch))


@program
def files_rewritten(load):
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder, f"{i}.txt")) for i in range(COUNT)]

        def change(epoch):
            for path in paths:
                Path(path).write_text("1" * (epoch + 1))

        return between_epochs(
            load(dataset(lambda self, i: number(Path(self.paths[i]).read_text()), paths=paths)),
            change,
        )


@program
def files_of_a_folder_rewritten(load):
    with tempfile.TemporaryDirectory() as folder:

        def change(epoch):
            for i in range(COUNT):
                Path(folder, f"{i}.txt").write_text("1" * (epoch + 1))

        change(0)
        made = dataset(lambda self, i: number((self.root / f"{i}.txt").read_text()))
        made.root = Path(folder)
        return between_epochs(load(made), change)


@program
def mapped_file(load):
    with tempfile.TemporaryDirectory() as folder:
        mapped = np.memmap(Path(folder, "data"), dtype="float64", mode="w+", shape=(COUNT,))
        made = dataset(lambda self, i: number(self.data[i]), data=mapped)
        return between_epochs(load(made), lambda epoch: _put(mapped, 3, epoch))


@program
def memo_of_something_changed(load):
    def sample(self, i):
        if i not in self.memo:
            self.memo[i] = number(i * self.scale)
        return self.memo[i]

    made = dataset(sample, memo={}, scale=1.0)
    return between_epochs(load(made), lambda epoch: _set(made, "scale", epoch + 1.0))
