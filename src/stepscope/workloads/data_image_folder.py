"""A folder of images, one folder in it for each class."""

from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError
from stepscope.workloads.data_split import divide, how_many, mixed

_ENDINGS: Final = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)


class ImageFolder:
    """Bytes [3, pixels, pixels] and a class, decoded at every use. A fifth is for the test."""

    def __init__(self, split: str, samples: int | None, folder: Path, pixels: int) -> None:
        _need_pillow(folder)
        train, test = _divided(folder)
        files, option = (train, "samples") if split == "train" else (test, "test-samples")
        count = how_many(samples, len(files), f"{folder}, without the other split,", option)
        self.files = files[:count]
        self.classes = [path.name for path in _class_folders(folder)]
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.labels = np.array([numbers[name.partition("/")[0]] for name in self.files])
        self.folder = str(folder)
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], Any]:
        return decode(f"{self.folder}/{self.files[index]}", self.pixels), self.labels[index]


def decode(path: str, pixels: int) -> NDArray[Any]:
    """An image file's bytes at some size: [3, pixels, pixels]."""
    Image = import_module("PIL.Image")  # noqa: N806
    try:
        with Image.open(path) as image:
            scaled = image.convert("RGB").resize((pixels, pixels), Image.Resampling.BILINEAR)
            return np.array(scaled).transpose(2, 0, 1).copy()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        raise UsageError(f"{path} cannot be read as an image: {problem}") from None


def _divided(folder: Path) -> tuple[list[str], list[str]]:
    """Names below the folder for the training and the test, classes mixed."""
    train: list[str] = []
    test: list[str] = []
    for place in _class_folders(folder):
        files = [f"{place.name}/{path.name}" for path in place.iterdir() if _is_image(path)]
        if not files:
            kinds = " ".join(sorted(_ENDINGS))
            raise UsageError(f"--data images: no images ({kinds}) in class folder {place}")
        for_train, for_test = divide(files)
        train += for_train
        test += for_test
    return sorted(train, key=mixed), sorted(test, key=mixed)


def _class_folders(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."]
    except OSError as problem:
        raise UsageError(f"--data images: {folder}: {problem.strerror}") from None
    if not found:
        raise UsageError(f"--data images: {folder} holds no folders, one for each class")
    return sorted(found)


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _ENDINGS and path.is_file()


def _need_pillow(folder: Path) -> None:
    try:
        import_module("PIL.Image")
    except ImportError:
        raise UsageError(f"--data images:{folder} needs Pillow: pip install pillow") from None
