"""Screens kept as text files, so that a rewording is a diff to look at.

STEPSCOPE_UPDATE_SNAPSHOTS=1 writes them anew.
"""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent.parent / "snapshots"


def check_snapshot(name, text):
    """Compare a screen with `tests/snapshots/NAME.txt`."""
    path = _FOLDER / f"{name}.txt"
    if os.environ.get("STEPSCOPE_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"{path} is missing: run with STEPSCOPE_UPDATE_SNAPSHOTS=1"
    assert text == path.read_text(encoding="utf-8")
