"""Folders, copies and links of a scratch copy, put where they are not yet."""

import os
import stat
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stepscope.tune.scratch_survey import Folder

_LEVELS = 3
"""So many folders above the working directory are there too, so that `../data` is."""
_MOST_BESIDE = 5_000


@dataclass(frozen=True, slots=True)
class Linked:
    """Something of the user's that a link in the scratch copy leads to, as it was before."""

    path: str
    size: int
    mtime_ns: int
    inode: int


def beside(original: Path, place: Path) -> Path:
    """Stand-ins for the folders above, each with links to what lies beside; the lowest of them."""
    here, above = place, list(reversed(original.parents[:_LEVELS]))
    for folder, child in zip(above, [*above[1:], original], strict=True):
        here = here / (folder.name or "root")
        here.mkdir(exist_ok=True)
        try:
            with os.scandir(folder) as entries:
                for entry in islice(entries, _MOST_BESIDE):
                    if entry.name != child.name:
                        _link(entry.path, str(here / entry.name))
        except PermissionError:
            continue  # nothing to be seen there for the program either
    return here


def build(found: Folder, target: str, tops: tuple[str, str], linked: list[Linked]) -> None:
    """A folder of the user's at `target`; `tops` are the original and its copy.

    What is only linked is added to `linked`.
    """
    os.makedirs(target, 0o700, exist_ok=True)
    for name, status in found.copied:
        _copy(os.path.join(found.path, name), os.path.join(target, name), status)
    for name, _ in found.linked:
        path = os.path.join(found.path, name)
        _link(path, os.path.join(target, name))
        linked += state_of(path)
    for name in found.links:
        _keep_link(os.path.join(found.path, name), os.path.join(target, name), tops)
    for inner in found.folders:
        there = os.path.join(target, os.path.basename(inner.path))
        if inner.whole:
            _link(inner.path, there)
            linked += state_of(inner.path) if inner.data else ()
        else:
            build(inner, there, tops, linked)
    os.utime(target, ns=(found.status.st_atime_ns, found.status.st_mtime_ns))
    os.chmod(target, stat.S_IMODE(found.status.st_mode) | 0o700)


def _copy(source: str, target: str, status: os.stat_result) -> None:
    """Content, mode and time of a file; one that cannot be read is passed over."""
    if os.path.lexists(target):
        return
    try:
        with open(source, "rb", buffering=0) as file:
            content = file.read()
    except OSError:
        return
    handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fchmod(handle, stat.S_IMODE(status.st_mode))
        os.utime(handle, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(handle)


def _keep_link(link: str, target: str, tops: tuple[str, str]) -> None:
    """A link of the user's: within the tree it stays so, else it leads where it led."""
    leads = os.readlink(link)
    full = os.path.normpath(os.path.join(os.path.dirname(link), leads))
    if not os.path.exists(link):
        return
    if not under(full, tops[0]):
        _link(full, target)
    elif os.path.isabs(leads):
        _link(os.path.join(tops[1], os.path.relpath(full, tops[0])), target)
    else:
        _link(leads, target)


def _link(leads: str, target: str) -> None:
    if not os.path.lexists(target):
        os.symlink(leads, target)


def state_of(path: str) -> tuple[Linked, ...]:
    """What is there; nothing where nothing is."""
    try:
        status = os.lstat(path)
    except OSError:
        return ()
    return (Linked(path, status.st_size, status.st_mtime_ns, status.st_ino),)


def under(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")
