"""Who made the call a fix has taken hold of: the program, a library, or another fix."""

import sys
from pathlib import Path
from types import FrameType

import stepscope
from stepscope.probe.sites import is_users

PACKAGE_FOLDER = str(Path(stepscope.__path__[0]))
"""The folder of stepscope itself."""
_WRAPPERS = tuple(str(Path(PACKAGE_FOLDER) / "probe" / part) for part in ("seams.py", "points"))


def caller(own: str) -> FrameType | None:
    """The frame that made the present call, past the seams and points it came through.

    None where stepscope itself made it: another fix, or the observer.
    `own` is the file of the fix that asks.
    """
    passed = (*_WRAPPERS, __file__, own)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    if frame is None or is_users(frame.f_code):
        return frame
    return None if frame.f_code.co_filename.startswith(PACKAGE_FOLDER) else frame


def users_caller(own: str) -> FrameType | None:
    """The same if it is the user's own code; None where a library or another fix calls."""
    frame = caller(own)
    return frame if frame is not None and is_users(frame.f_code) else None
