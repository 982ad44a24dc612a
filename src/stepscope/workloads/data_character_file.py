"""Texts and their classes from a file of the user: a label, a tab and a text in every line."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.record.errors import UsageError
from stepscope.workloads.data_characters import encode
from stepscope.workloads.data_split import divide, how_many, mixed


class CharacterFile:
    """Codes [length] and a class; labels are numbered in their sorted order."""

    def __init__(
        self, split: str, samples: int | None, path: Path, length: int, vocabulary: int
    ) -> None:
        texts = read(path)
        self.classes = sorted(texts)
        lines = []
        for number, label in enumerate(self.classes):
            chosen = divide(texts[label])[0 if split == "train" else 1]
            lines += [(mixed(text), number, text) for text in chosen]
        lines.sort()
        option = "samples" if split == "train" else "test-samples"
        count = how_many(samples, len(lines), f"{path}, without the other split,", option)
        self.labels = np.array([number for _, number, _ in lines[:count]], dtype=np.int64)
        self._codes = np.stack([encode(text, length, vocabulary) for *_, text in lines[:count]])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[NDArray[Any], Any]:
        return self._codes[index], self.labels[index]


def read(path: Path) -> dict[str, list[str]]:
    """The different texts of every label."""
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
