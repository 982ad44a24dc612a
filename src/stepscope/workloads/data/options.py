"""Which samples a workload gets, and what each costs. Needs no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stepscope.record.errors import UsageError

DATA_KINDS: Final = ("synthetic", "resident", "cifar10", "images", "characters")
DATA_CHOICES: Final = "synthetic, resident, cifar10, cifar10:FOLDER, images:FOLDER, characters:FILE"
TRAIN_SAMPLES: Final = 2000
TEST_SAMPLES: Final = 400
_LARGEST_RESIZE: Final = 4096


@dataclass(frozen=True, slots=True)
class DataOptions:
    """The requested samples. `samples` and `test_samples`: None is all of a finite set, 2,000 and
    400 of a synthetic one. `resize`: stored pixel size of images, to be resized one by one; None:
    the model's size. `decode_ms`, `latency_ms`: decoding and waiting time per sample.
    `disk_mb_per_s`: the disk's rate for all workers together; None: samples are in memory."""

    data: str = "synthetic"
    folder: Path | None = None
    samples: int | None = None
    test_samples: int | None = None
    seed: int = 0
    decode_ms: float = 0.0
    resize: int | None = None
    latency_ms: float = 0.0
    disk_mb_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.resize is not None and not 1 <= self.resize <= _LARGEST_RESIZE:
            raise UsageError(f"--resize {self.resize}: use 1 to {_LARGEST_RESIZE} pixels")


def parse_data(text: str) -> tuple[str, Path | None]:
    """The kind and path of `images:FOLDER` and the like. Raises UsageError if the path does not
    exist."""
    kind, colon, place = text.partition(":")
    needs_place, may_have_place = kind in ("images", "characters"), kind == "cifar10"
    wrong = bool(colon) and not (needs_place or may_have_place)
    if kind not in DATA_KINDS or wrong or ((needs_place or colon) and not place):
        raise UsageError(f"--data {text}: use one of {DATA_CHOICES}")
    if not place:
        return kind, None
    path = Path(place).expanduser()
    if kind == "characters" and not path.is_file():
        raise UsageError(f"--data {text}: no file {path}")
    if kind != "characters" and not path.is_dir():
        raise UsageError(f"--data {text}: no folder {path}")
    return kind, path
