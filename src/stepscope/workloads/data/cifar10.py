"""The real CIFAR-10 from its original files: found, unpacked or fetched, each checked before
reading.
"""

import hashlib
import http.client
import io
import os
import pickle
import sys
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.hardware.ceiling_cache import cache_folder
from stepscope.record.errors import UsageError
from stepscope.workloads.data.synthetic import LabelledArrays
from stepscope.workloads.data.user_files import sample_count

URL: Final = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz"
ARCHIVE: Final = "cifar-10-python.tar.gz"
ARCHIVE_MD5: Final = "c58f30108f718f92721af3b95e74349a"
INSIDE: Final = "cifar-10-batches-py"
FILES: Final = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
_LARGEST_ARCHIVE: Final = 200_000_000
_LARGEST_FILE: Final = 40_000_000
_SILENCE_S: Final = 20.0
_LONGEST_S: Final = 900.0
_CHUNK: Final = 1 << 20


def ensure_files(folder: Path, asked: bool) -> Path:
    """The folder with the six files, unpacked or fetched if necessary. `asked`: the user named the
    folder, so it must exist."""
    for place in (folder, folder / INSIDE):
        if all((place / name).is_file() for name in FILES):
            return place
    if asked and not folder.is_dir():
        raise UsageError(f"cifar10: no folder {folder}")
    archive = folder / ARCHIVE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not archive.is_file():
            _fetch(archive)
        _unpack(archive, folder / INSIDE)
    except (OSError, KeyError, EOFError, tarfile.TarError) as problem:
        raise UsageError(f"cifar10: {archive} could not be unpacked: {problem}") from None
    return folder / INSIDE


def _fetch(archive: Path) -> None:
    """Download the archive; it gets its name once complete and verified."""
    print(f"fetching {URL} (170 MB) to {archive.parent}", file=sys.stderr)
    with tempfile.NamedTemporaryFile(dir=archive.parent, prefix=".cifar10-", delete=False) as draft:
        try:
            received, until = 0, time.monotonic() + _LONGEST_S
            with urllib.request.urlopen(URL, timeout=_SILENCE_S) as answer:
                while chunk := answer.read(_CHUNK):
                    received += len(chunk)
                    if received > _LARGEST_ARCHIVE:
                        raise ValueError(f"it is larger than {_LARGEST_ARCHIVE / 1e6:.0f} MB")
                    if time.monotonic() > until:
                        raise TimeoutError(f"it took longer than {_LONGEST_S / 60:.0f} minutes")
                    draft.write(chunk)
            draft.flush()
            _check(Path(draft.name), archive.name)
            os.replace(draft.name, archive)
        except (OSError, ValueError, http.client.HTTPException) as problem:
            os.unlink(draft.name)
            reason = getattr(problem, "reason", None) or problem
            raise UsageError(
                f"cifar10 is not in {archive.parent} and could not be fetched ({reason}): put"
                f" {ARCHIVE} from {URL} there"
            ) from None
        except BaseException:
            os.unlink(draft.name)
            raise


def _check(path: Path, name: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != ARCHIVE_MD5:
        raise ValueError(f"{name} has MD5 {found}, not {ARCHIVE_MD5}")


def _unpack(archive: Path, folder: Path) -> None:
    """Extract only the six files, under our names for them."""
    try:
        _check(archive, archive.name)
    except ValueError as problem:
        raise UsageError(f"cifar10: in {archive.parent}, {problem}: delete it and retry") from None
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive, "r:gz") as tar:
        for name in FILES:
            member = tar.extractfile(f"{INSIDE}/{name}")
            content = member.read(_LARGEST_FILE) if member else b""
            draft = folder / f".{name}-{os.getpid()}"
            draft.write_bytes(content)
            os.replace(draft, folder / name)


CLASSES: Final = 10
PIXELS: Final = 32
_BATCH: Final = 10_000


class Cifar10(LabelledArrays):
    """Bytes [3, 32, 32] and a class, in the files' order. `samples` None: all."""

    def __init__(self, split: str, samples: int | None, folder: Path | None) -> None:
        *train, test = FILES
        names = train if split == "train" else [test]
        count = sample_count(samples, len(names) * _BATCH, "cifar10", split)
        place = ensure_files(folder or cache_folder() / "cifar10", asked=folder is not None)
        read = [_read_batch(place / name) for name in names[: -(-count // _BATCH)]]
        self.inputs = np.concatenate([images for images, _ in read])[:count]
        self.labels = np.concatenate([labels for _, labels in read])[:count]


def _read_batch(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The images and labels of a file, read from the very bytes that were checked."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise UsageError(f"cifar10: {path} cannot be read ({problem.strerror})") from None
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != FILES[path.name]:
        raise UsageError(f"cifar10: {path} is corrupt (wrong MD5); delete it and retry")
    batch = Unpickler(io.BytesIO(content), encoding="bytes").load()
    images = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, 3, PIXELS, PIXELS)
    return images, np.asarray(batch[b"labels"], dtype=np.int64)


class Unpickler(pickle.Unpickler):
    """Unpickles only NumPy arrays, lists, dictionaries, strings and numbers."""

    def find_class(self, module: str, name: str) -> Any:
        made_by = np.empty(0).__reduce__()[0]  # its module's name depends on NumPy's version
        known = {"_reconstruct": made_by, "ndarray": np.ndarray, "dtype": np.dtype}
        if module.partition(".")[0] != "numpy" or name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong in a CIFAR-10 file")
        return known[name]
