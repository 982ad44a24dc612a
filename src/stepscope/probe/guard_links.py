"""Links in a scratch copy, replaced by what they lead to: at once for all who look."""

import ctypes
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager

_HERE, _EXCHANGE = -100, 2


@contextmanager
def held(folder: str) -> Iterator[None]:
    """One process at a time replaces links below this folder."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def opened(link: str, real: str) -> None:
    """A link to a folder becomes a folder with links to the entries of the other."""
    fresh = _beside(link)
    os.mkdir(fresh, 0o700)
    with os.scandir(real) as entries:
        for entry in entries:
            os.symlink(entry.path, os.path.join(fresh, entry.name))
    shutil.copystat(real, fresh)
    os.chmod(fresh, stat.S_IMODE(os.stat(real).st_mode) | 0o700)
    if _exchanged(fresh, link):
        os.unlink(fresh)
    else:
        os.unlink(link)
        os.rename(fresh, link)


def copied(link: str, real: str) -> None:
    """A link to a file becomes a copy of it."""
    fresh = _beside(link)
    shutil.copyfile(real, fresh)
    shutil.copystat(real, fresh)
    os.replace(fresh, link)


def emptied(link: str, status: os.stat_result) -> None:
    """A link to a file whose content goes anyway becomes an empty file."""
    fresh = _beside(link)
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    os.chmod(fresh, stat.S_IMODE(status.st_mode))
    os.replace(fresh, link)


def _beside(link: str) -> str:
    folder, name = os.path.split(link)
    return os.path.join(folder, f".{name[:100]}.{os.getpid()}")


def _exchanged(one: str, other: str) -> bool:
    """Swap two names in one step; False where the system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(swap(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)
