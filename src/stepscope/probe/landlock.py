"""The kernel's own guard: from here on this process and its children write only where they may.

Linux's Landlock refuses what an audit hook cannot see: native writers, and programs started by the
program. Only rights to write are restricted; reading, running and connecting stay free.
"""

import ctypes
import os
import sys
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38

_WRITE_FILE = 1 << 1
_REMOVE = 1 << 4 | 1 << 5
_MAKE = sum(1 << bit for bit in range(6, 13))
_REFER = 1 << 13  # rename and link from one folder to another
_TRUNCATE = 1 << 14
_ALL = _WRITE_FILE | _REMOVE | _MAKE | _REFER


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def available() -> bool:
    """Whether this kernel can do it, and the GPU's driver is up.

    The first version would forbid every move between folders. A driver whose devices are not all
    there yet is completed by a helper that needs the privileges given up here.
    """
    unready = os.path.exists("/proc/driver/nvidia/version") and not os.path.exists(
        "/dev/nvidia-uvm"
    )
    return sys.platform == "linux" and _version() >= 2 and not unready


def restrict(folders: Iterable[str]) -> bool:
    """Refuse writes outside these folders and the devices, for good; False where it cannot be.

    Folders that are not there are passed over. To be called while there is one thread.
    """
    if not available():
        return False
    rights = _ALL | (_TRUNCATE if _version() >= 3 else 0)
    ruleset = _call(_CREATE_RULESET, ctypes.byref(_Ruleset(rights)), 8, 0)
    if ruleset < 0:
        return False
    try:
        for folder in (*folders, "/dev/shm"):
            _allow(ruleset, folder, rights)
        for folder in ("/dev", "/proc"):
            _allow(ruleset, folder, rights & (_WRITE_FILE | _TRUNCATE))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            return False
        return _call(_RESTRICT_SELF, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, folder: str, rights: int) -> None:
    try:
        handle = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = _Beneath(rights, handle)
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(handle)


def _version() -> int:
    """The kernel's version of Landlock; below 1: it has none, or it is switched off."""
    return _call(_CREATE_RULESET, None, 0, _VERSION)


def _call(number: int, *arguments: object) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return int(syscall(ctypes.c_long(number), *(_wide(each) for each in arguments)))


def _wide(value: object) -> object:
    return ctypes.c_long(value) if isinstance(value, int) else value
