"""Let the parent look at this process where Linux would only let an ancestor do so."""

import ctypes
import os
import sys

_PR_SET_PTRACER = 0x59616D61


def allow_parent() -> None:
    """Permit the parent and its other children (py-spy) to read this process's memory.

    Matters under Yama's `ptrace_scope` 1, the default of Ubuntu; elsewhere it changes nothing.
    """
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(os.getppid()), 0, 0, 0)
    except (OSError, AttributeError):
        return
