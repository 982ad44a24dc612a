"""Samples from the user's files, always split the same way into training and test: a folder with
one image folder per class, or a text file with `label<TAB>text` on every line.
"""

import hashlib
from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError
from stepscope.workloads.data.synthetic import LabelledArrays, encode_characters


def _split_names(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """A fifth of the names, at least one of two, goes to the test split; the order is
    pseudo-random."""
    shuffled = sorted(names, key=_shuffle_key)
    test = max(1, len(shuffled) // 5) if len(shuffled) > 1 else 0
    return shuffled[test:], shuffled[:test]


def _shuffle_key(name: str) -> bytes:
    """A sort key unrelated to the names."""
    return hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=16).digest()


def sample_count(asked: int | None, there: int, what: str, split: str) -> int:
    """The number of samples to take; `asked` None: all."""
    option = "samples" if split == "train" else "test-samples"
    if there == 0:
        raise UsageError(f"{what} has no samples for --{option}")
    if asked is not None and asked > there:
        raise UsageError(f"--{option} {asked}: {what} has {there}")
    return there if asked is None else asked


_ENDINGS: Final = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)


class ImageFolder:
    """Bytes [3, pixels, pixels] and a class, decoded at every use. A fifth is for testing."""

    def __init__(self, split: str, samples: int | None, folder: Path, pixels: int) -> None:
        if find_spec("PIL") is None:
            raise UsageError(f"--data images:{folder} needs Pillow: pip install pillow")
        folders = _class_folders(folder)
        train, test = _divided(folders)
        files = train if split == "train" else test
        count = sample_count(samples, len(files), f"{folder}, without the other split,", split)
        self.files = files[:count]
        self.classes = [path.name for path in folders]
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.labels = np.array([numbers[name.partition("/")[0]] for name in self.files])
        self.folder = str(folder)
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], Any]:
        path, size = f"{self.folder}/{self.files[index]}", (self.pixels, self.pixels)
        Image = import_module("PIL.Image")  # noqa: N806
        try:
            with Image.open(path) as image:
                scaled = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
                return np.array(scaled).transpose(2, 0, 1).copy(), self.labels[index]
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
            raise UsageError(f"{path} cannot be read as an image: {problem}") from None


def _divided(folders: list[Path]) -> tuple[list[str], list[str]]:
    """File names in these folders for training and test, classes mixed."""
    train: list[str] = []
    test: list[str] = []
    for place in folders:
        files = [
            f"{place.name}/{path.name}"
            for path in place.iterdir()
            if path.suffix.lower() in _ENDINGS and path.is_file()
        ]
        if not files:
            kinds = " ".join(sorted(_ENDINGS))
            raise UsageError(f"--data images: no images ({kinds}) in class folder {place}")
        for_train, for_test = _split_names(files)
        train += for_train
        test += for_test
    return sorted(train, key=_shuffle_key), sorted(test, key=_shuffle_key)


def _class_folders(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    except OSError as problem:
        raise UsageError(f"--data images: {folder}: {problem.strerror}") from None
    if not found:
        raise UsageError(f"--data images: {folder} has no class folders")
    return sorted(found)


class CharacterFile(LabelledArrays):
    """Codes [length] and a class; labels are numbered in their sorted order."""

    def __init__(
        self, split: str, samples: int | None, path: Path, length: int, vocabulary: int
    ) -> None:
        texts = read_labelled_texts(path)
        self.classes = sorted(texts)
        lines = []
        for number, label in enumerate(self.classes):
            chosen = _split_names(texts[label])[0 if split == "train" else 1]
            lines += [(_shuffle_key(text), number, text) for text in chosen]
        lines.sort()
        count = sample_count(samples, len(lines), f"{path}, without the other split,", split)
        self.labels = np.array([number for _, number, _ in lines[:count]], dtype=np.int64)
        codes = [encode_characters(text, length, vocabulary) for *_, text in lines[:count]]
        self.inputs = np.stack(codes)


def read_labelled_texts(path: Path) -> dict[str, list[str]]:
    """The distinct texts of each label."""
    texts: dict[str, dict[str, None]] = {}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                label, tab, text = line.rstrip("\r\n").partition("\t")
                if not tab or not label.strip() or not text:
                    raise UsageError(f"{path}, line {number}: write label<TAB>text")
                texts.setdefault(label.strip(), {})[text] = None
    except OSError as problem:
        raise UsageError(f"--data characters: {path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--data characters: {path} is not UTF-8 text") from None
    if len(texts) < 2:
        raise UsageError(f"--data characters: {path} has {len(texts)} labels; 2 or more are needed")
    return {label: list(found) for label, found in texts.items()}
