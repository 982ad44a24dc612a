"""Reads what `encode_timeline` packs, as the page's script does."""

import gzip
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The header and the columns, as the page reads them."""
    whole = gzip.decompress(data)
    length = int(np.frombuffer(whole[4:8], "<u4")[0])
    head: dict[str, Any] = json.loads(whole[8 : 8 + length])
    body, columns = whole[8 + length :], {}
    for name, (kind, size, offset) in head["columns"].items():
        width = np.dtype(kind).itemsize
        planes = np.frombuffer(body, np.uint8, size * width, offset).reshape(width, size)
        columns[name] = np.ascontiguousarray(planes.T).view(f"<{kind}").ravel()
    return head, columns
