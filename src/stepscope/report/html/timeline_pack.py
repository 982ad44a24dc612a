"""Columns of numbers as bytes that compress well and that a browser turns into typed arrays."""

import gzip
import json
from typing import Any

import numpy as np

from stepscope.record.timeline import Column

MAGIC = b"STL1"
_WHOLE = {
    "u1": (0, 0xFF),
    "u2": (0, 0xFFFF),
    "u4": (0, 0xFFFFFFFF),
    "i4": (-(1 << 31), (1 << 31) - 1),
}
"""The least and the largest number of each type; what none holds is stored as a float64, `f8`."""


class Packing:
    """Collects columns; each is split into its bytes' planes, since high bytes are mostly alike."""

    def __init__(self) -> None:
        self._planes: list[bytes] = []
        self._at = 0
        self.columns: dict[str, tuple[str, int, int]] = {}
        """Type, number of values, offset in bytes."""

    def add(self, name: str, values: Column) -> None:
        """In the smallest type that holds the values exactly."""
        kind = _smallest(values)
        column = np.ascontiguousarray(values.astype(f"<{kind}"))
        planes = column.view(np.uint8).reshape(len(column), column.itemsize).T
        self.columns[name] = (kind, len(column), self._at)
        self.add_bytes(np.ascontiguousarray(planes).tobytes())

    def add_bytes(self, data: bytes) -> tuple[int, int]:
        """As they are: their offset and length."""
        self._planes.append(data)
        self._at += len(data)
        return self._at - len(data), len(data)

    def packed(self, head: dict[str, Any]) -> bytes:
        """All of it, gzipped: a mark, the head's length, the head as JSON, the columns."""
        text = json.dumps({**head, "columns": self.columns}, separators=(",", ":")).encode()
        whole = b"".join((MAGIC, np.array([len(text)], "<u4").tobytes(), text, *self._planes))
        return gzip.compress(whole, 6, mtime=0)


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, Column]]:
    """The head and the columns again, as the page reads them."""
    whole = gzip.decompress(data)
    length = int(np.frombuffer(whole[4:8], "<u4")[0])
    head: dict[str, Any] = json.loads(whole[8 : 8 + length])
    body, columns = whole[8 + length :], {}
    for name, (kind, size, offset) in head["columns"].items():
        width = np.dtype(kind).itemsize
        planes = np.frombuffer(body, np.uint8, size * width, offset).reshape(width, size)
        columns[name] = np.ascontiguousarray(planes.T).view(f"<{kind}").ravel()
    return head, columns


def _smallest(values: Column) -> str:
    if not len(values):
        return "u1"
    low, high = int(values.min()), int(values.max())
    fits = (kind for kind, (least, most) in _WHOLE.items() if least <= low and high <= most)
    return next(fits, "f8")
