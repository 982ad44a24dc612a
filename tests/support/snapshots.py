"""Screens kept as text files, so that a rewording is a diff to look at.

STEPSCOPE_UPDATE_SNAPSHOTS=1 writes them anew.
"""

import io
import os
from pathlib import Path
from unittest import mock

from stepscope.report.render.terminal.story import print_story

_FOLDER = Path(__file__).parent.parent / "snapshots"


def check_screen(name, story, detail=False):
    """Compare a story on 80 and 60 columns with `tests/snapshots/NAME.txt` and `NAME-60.txt`."""
    for width, path in ((80, _FOLDER / f"{name}.txt"), (60, _FOLDER / f"{name}-60.txt")):
        stream = io.StringIO()
        with mock.patch.dict(os.environ, COLUMNS=str(width)):
            print_story(story, stream, detail=detail)
        text = stream.getvalue()
        if os.environ.get("STEPSCOPE_UPDATE_SNAPSHOTS"):
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing: run with STEPSCOPE_UPDATE_SNAPSHOTS=1"
        assert text == path.read_text(encoding="utf-8")
        assert max(map(len, text.splitlines())) <= width
