"""The second wall, for systems without namespaces, such as most containers. Landlock refuses to
write, create and remove files outside a few folders, in every program the trial starts. It knows
nothing of modes, owners, times and attributes: a system call filter leaves those as they are,
everywhere, and says they were changed."""

import ctypes
import os
import struct
from collections.abc import Iterable, Sequence

from stepscope.probe.guard.namespaces import SHARED_MEMORY

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_OLDEST = 3  # before, files could be truncated
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2

_WRITE_FILE, _TRUNCATE = 1 << 1, 1 << 14
_REMOVE = 1 << 4 | 1 << 5
_MAKE = sum(1 << bit for bit in range(6, 13))
_REFER = 1 << 13  # rename and link from one folder to another
_ALL = _WRITE_FILE | _REMOVE | _MAKE | _REFER | _TRUNCATE

_SET_FLAGS = (0x40086602, 0x40046602, 0x401C5820)  # ioctls: immutable, append only, project …
_METADATA: dict[str, tuple[int, int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        16,
        (
            *(90, 91, 268, 452),  # chmod, fchmod, fchmodat, fchmodat2
            *(92, 93, 94, 260),  # chown, fchown, lchown, fchownat
            *(132, 235, 261, 280),  # utime, utimes, futimesat, utimensat
            *(188, 189, 190, 463, 197, 198, 199, 466, 469),  # attributes, file_setattr
        ),
    ),
    "aarch64": (
        0xC00000B7,
        29,
        (*(52, 53, 452), *(54, 55), 88, *(5, 6, 7, 463, 14, 15, 16, 466, 469)),
    ),
}
"""By machine: its number in the kernel, the number of `ioctl`, and of the calls that change what
is known of a file: its mode, owner, times and extended attributes."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def enter_landlock(folders: Iterable[str]) -> None:
    """Refuse writes outside these folders, the devices and /proc, for good. Raises OSError. Folders
    that are not there are passed over. To be called while there is one thread."""
    machine = os.uname().machine
    if _call(_CREATE_RULESET, None, 0, _ASK_VERSION) < _OLDEST or machine not in _METADATA:
        raise OSError("Landlock is missing or too old")
    ruleset = _checked(_call(_CREATE_RULESET, ctypes.byref(_Ruleset(_ALL)), 8, 0), "Landlock")
    try:
        for folder in (*folders, SHARED_MEMORY):
            _allow(ruleset, folder, _ALL)
        for folder in ("/dev", "/proc"):
            _allow(ruleset, folder, _WRITE_FILE | _TRUNCATE)
        _checked(_control(_NO_NEW_PRIVILEGES, 1), "no_new_privs")
        _checked(_call(_RESTRICT_SELF, ruleset, 0), "Landlock")
    finally:
        os.close(ruleset)
    code = _metadata_filter(*_METADATA[machine])
    program = _Program(len(code) // 8, code)
    _checked(_control(_SECCOMP, _FILTER, ctypes.addressof(program)), "seccomp")


def exposed_in_shared_memory() -> list[str]:
    """The user's files in shared memory, which programs must be able to write under Landlock. What
    running programs share with each other, by names nobody else uses, is not meant."""
    try:
        with os.scandir(SHARED_MEMORY) as entries:
            return [entry.path for entry in entries if _is_exposed(entry)]
    except OSError:
        return []


_IN_USE = ("sem.", "psm_", "torch_", "nccl-", "mp-", "pym-", "pulse-shm-", "__KMP_", "cuda.shm.")
"""How names begin that libraries give to what processes share."""


def _is_exposed(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(_IN_USE) and os.access(entry.path, os.W_OK)


_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOWED, _REFUSED = 0x7FFF0000, 0x00050000  # the latter plus an error number; 0: success
_NOT_IMPLEMENTED = 38


def _metadata_filter(machine: int, ioctl: int, calls: Sequence[int]) -> bytes:
    """A BPF program: these calls, and an ioctl that sets flags, do nothing and succeed."""
    allow, done, foreign = "allow", "done", "foreign"
    lines: list[tuple[int, int, str, str]] = [(_LOAD, 4, "", ""), (_EQUAL, machine, "", foreign)]
    lines += [(_LOAD, 0, "", ""), *((_EQUAL, number, done, "") for number in calls)]
    lines += [(_EQUAL, ioctl, "", allow), (_LOAD, 24, "", "")]
    lines += [(_EQUAL, flags, done, "") for flags in _SET_FLAGS]
    ends = {allow: _ALLOWED, done: _REFUSED, foreign: _REFUSED | _NOT_IMPLEMENTED}
    places = {name: len(lines) + place for place, name in enumerate(ends)}
    code = b""
    for at, (operation, value, equal, other) in enumerate(lines):
        jumps = [places[name] - at - 1 if name else 0 for name in (equal, other)]
        code += struct.pack("=HBBI", operation, *jumps, value)
    return code + b"".join(struct.pack("=HBBI", _RETURN, 0, 0, end) for end in ends.values())


def _allow(ruleset: int, folder: str, rights: int) -> None:
    try:
        handle = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rule = _Beneath(rights, handle)
        _checked(_call(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0), folder)
    finally:
        os.close(handle)


def _call(number: int, *arguments: object) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    wide = (ctypes.c_long(one) if isinstance(one, int) else one for one in (number, *arguments))
    return int(syscall(*wide))


def _control(option: int, value: int, pointer: int = 0) -> int:
    wide = (ctypes.c_ulong(one) for one in (value, pointer, 0, 0))
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, *wide))


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
