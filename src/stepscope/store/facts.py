"""Facts the child learns, one JSON object a line, each written whole at once.

Several processes may append to the same file (the program and its loader workers).
"""

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any


class Facts:
    """Appends facts; every line has a `fact` that names its kind."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, fact: str, **data: Any) -> None:
        """One fact. Raises OSError on a full disk."""
        line = json.dumps({"fact": fact, **data}, default=str)
        os.write(self._fd, line.encode() + b"\n")


def read_facts(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Facts by kind, in order of writing; a torn last line is passed over."""
    facts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return facts
    for line in lines:
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict) and isinstance(data.get("fact"), str):
            facts[data.pop("fact")].append(data)
    return facts
