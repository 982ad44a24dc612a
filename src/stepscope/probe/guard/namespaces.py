"""The first wall: a mount namespace of the trial's own, in which everything but a few folders is
mounted read-only. It holds for every program the trial starts, and for modes, owners, times and
attributes as well as content."""

import ctypes
import os
import stat
from collections.abc import Iterable, Sequence

_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12
_NO_SUID, _NO_DEVICES = 1 << 1, 1 << 2
_SET_ATTRIBUTES, _AT_RECURSIVE, _AT_HERE, _READ_ONLY = 442, 0x8000, -100, 1
_CAPABILITIES_3 = 0x20080522
SHARED_MEMORY = "/dev/shm"


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    ]


def enter_namespaces(folders: Iterable[str]) -> None:
    """Mount everything but `folders` and /proc read-only for this process and its children, with
    shared memory of their own. Raises OSError. To be called while there is one thread."""
    user, group, here = os.geteuid(), os.getegid(), os.getcwd()
    if user == 0:  # a user namespace would take away files of others, which root may read
        _done(_libc().unshare(_NEW_MOUNTS), "unshare")
    else:
        _done(_libc().unshare(_NEW_MOUNTS | _NEW_USER), "unshare")
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    _mount("none", "/", _PRIVATE | _RECURSIVE)
    writable = [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]
    handles = [os.open(folder, os.O_PATH | os.O_CLOEXEC) for folder in writable]
    shared = _own_shared_memory()
    for folder, handle in zip(writable, handles, strict=True):
        if not os.path.isdir(folder):  # it lies in shared memory
            os.makedirs(folder)
        _mount(f"/proc/self/fd/{handle}", folder, _BIND | _RECURSIVE)
        os.close(handle)
    _set_attributes("/", _Attributes(set=_READ_ONLY), _AT_RECURSIVE)
    for folder in (*writable, *shared, "/proc"):
        _set_attributes(folder, _Attributes(clear=_READ_ONLY))
    os.chdir(here)  # it was the folder as mounted before
    if user != 0:
        _drop_capabilities()


def _own_shared_memory() -> Sequence[str]:
    """New, empty shared memory of the same size, in which the user's files can be read."""
    place = os.path.realpath(SHARED_MEMORY)
    if not os.path.isdir(place):
        return ()
    size = os.statvfs(place)
    before = os.open(place, os.O_PATH | os.O_CLOEXEC)
    names = os.listdir(place)
    limit = f"size={size.f_blocks * size.f_frsize},mode=1777"
    _mount("tmpfs", place, _NO_SUID | _NO_DEVICES, "tmpfs", limit)
    for name in names:
        theirs, target = f"/proc/self/fd/{before}/{name}", os.path.join(place, name)
        try:
            mode = os.lstat(theirs).st_mode
        except OSError:
            continue  # another program's, gone meanwhile
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(theirs), target)
            continue
        if stat.S_ISDIR(mode):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))
        try:
            _mount(theirs, target, _BIND | _RECURSIVE)
        except FileNotFoundError:
            os.rmdir(target) if stat.S_ISDIR(mode) else os.unlink(target)
    os.close(before)
    return (place,)


def _drop_capabilities() -> None:
    """In its user namespace a process may do anything; the program is to have its usual rights."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    _done(_libc().capset(header, (ctypes.c_uint32 * 6)()), "capset")


def _mount(source: str, target: str, flags: int, kind: str = "", options: str = "") -> None:
    names = (os.fsencode(one) if one else None for one in (source, target, kind))
    what, where, of = names
    given = options.encode() if options else None
    _done(_libc().mount(what, where, of, ctypes.c_ulong(flags), given), f"mount {target}")


def _set_attributes(path: str, attributes: _Attributes, flags: int = 0) -> None:
    status = _libc().syscall(
        ctypes.c_long(_SET_ATTRIBUTES),
        ctypes.c_long(_AT_HERE),
        os.fsencode(path),
        ctypes.c_long(flags),
        ctypes.byref(attributes),
        ctypes.c_long(ctypes.sizeof(attributes)),
    )
    _done(status, f"mount_setattr {path}")


def _write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, text.encode())
    finally:
        os.close(handle)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _done(status: int, what: str) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
