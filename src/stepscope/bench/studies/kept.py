"""Measurements of a study, each made once: what is finished is found again when it goes on."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.bench.point import Point

Record = dict[str, Any]
Measure = Callable[[Point, Path, float | None], Record]
Tell = Callable[[str], None]

_RECORD = "record.json"


class Kept:
    """Measures points in processes of their own below `folder`."""

    def __init__(self, folder: Path, measure: Measure, timeout_s: float | None) -> None:
        self._folder = folder / "study"
        self._measure = measure
        self._timeout_s = timeout_s

    def __call__(self, point: Point, number: int = 1) -> Record:
        """The record of the point's n-th process."""
        place = self.place(point, str(number))
        known = _read(place / _RECORD)
        if known is not None and known.get("key") == point.key():
            return known
        record = self._measure(point, place, self._timeout_s)
        place.mkdir(parents=True, exist_ok=True)
        part = place / f"{_RECORD}.part"
        part.write_text(json.dumps(record))
        part.replace(place / _RECORD)
        return record

    def place(self, point: Point, purpose: str) -> Path:
        """A folder for one process of a point."""
        digest = hashlib.sha256(point.key().encode()).hexdigest()[:12]
        return self._folder / f"{point.device}-{point.batch}-{digest}-{purpose}"


def _read(path: Path) -> Record | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
