"""The user's own line that led to a call, or to an error."""

import linecache
import os
import sys
from types import FrameType, TracebackType

from stepscope.probe.sites import is_users


def here() -> str:
    """`file:line` of the nearest user's frame; empty where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code):
            return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def raised_at(trace: TracebackType | None) -> tuple[str, str]:
    """`file:line` of the innermost user's frame of a traceback, and that line's text."""
    where, line = "", ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code):
            where = f"{short_path(code.co_filename)}:{trace.tb_lineno}"
            line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    return where, line


def short_path(path: str) -> str:
    """As the user would name a file: from the working directory, or by its name alone."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return os.path.basename(path) if near.startswith("..") else near
