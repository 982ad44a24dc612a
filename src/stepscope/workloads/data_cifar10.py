"""The real CIFAR-10, from its own files, each checked before it is read."""

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.hardware.ceiling_cache import cache_folder
from stepscope.record.errors import UsageError
from stepscope.workloads import data_cifar10_fetch as fetch
from stepscope.workloads.data_split import how_many

CLASSES: Final = 10
PIXELS: Final = 32
_BATCH: Final = 10_000
_TRAIN: Final = tuple(f"data_batch_{number}" for number in range(1, 6))
_TEST: Final = ("test_batch",)


class Cifar10:
    """Bytes [3, 32, 32] and a class, in the files' order. `samples` None: all there are."""

    def __init__(self, split: str, samples: int | None, folder: Path | None) -> None:
        names, option = (_TRAIN, "samples") if split == "train" else (_TEST, "test-samples")
        count = how_many(samples, len(names) * _BATCH, "cifar10", option)
        place = fetch.ensure(folder or cache_folder() / "cifar10", asked=folder is not None)
        read = [_read(place / name) for name in names[: -(-count // _BATCH)]]
        self.images = np.concatenate([images for images, _ in read])[:count]
        self.labels = np.concatenate([labels for _, labels in read])[:count]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.images[index], self.labels[index]


def _read(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images and labels of a file. What was checked is what is read: the same bytes."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cifar10: {path} cannot be read ({problem.strerror})") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != fetch.FILES[path.name]:
        raise UsageError(f"cifar10: {path} is not the file it should be (MD5); delete it and retry")
    batch = Unpickler(io.BytesIO(content), encoding="bytes").load()
    images = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, PIXELS, PIXELS)
    return images, np.asarray(batch[b"labels"], dtype=np.int64)


class Unpickler(pickle.Unpickler):
    """Makes NumPy arrays, lists, dictionaries, texts and numbers, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        made_by = np.empty(0).__reduce__()[0]  # its module's name depends on NumPy's version
        known = {"_reconstruct": made_by, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a CIFAR-10 file")
        return known[name]
