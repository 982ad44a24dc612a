"""What of a folder is copied for a trial, what is linked, and what is left out."""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass, field

from stepscope.record.errors import UsageError

SMALL_BYTES = 1 << 20
"""Files up to here are copied, larger ones linked; Python sources are always copied."""
MOST_BYTES = 1 << 30
MOST_FILES = 20_000
_MOST_SEEN = 200_000
_DATA_BYTES = 64 << 20
_DATA_FILES = 2_000
_ENOUGH = 20_000
"""Entries without a Python source among them after which a folder is taken for data."""

_LEFT_OUT = {".stepscope", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
_WHOLE = {".git", ".hg", ".svn", ".venv", "venv", "node_modules", ".tox", ".nox"}


@dataclass(slots=True)
class Folder:
    """A folder of the user's as a trial is to see it."""

    path: str
    status: os.stat_result
    whole: bool = False
    """Linked as it is, its content not looked at further."""
    data: bool = False
    """Linked because it holds data, not because of its name."""
    copied: list[tuple[str, os.stat_result]] = field(default_factory=list)
    linked: list[tuple[str, os.stat_result]] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    """Symbolic links of the user's own."""
    folders: list["Folder"] = field(default_factory=list)
    python: bool = False
    """Whether a Python source is anywhere in it."""
    files: int = 0
    bytes: int = 0
    seen: int = 0


class _Bounds:
    def __init__(self, top: str) -> None:
        self.top = top
        self.seen = 0

    def look(self) -> None:
        self.seen += 1
        if self.seen > _MOST_SEEN:
            raise _too_much(self.top)


def survey(top: str, leave_out: Collection[str] = ()) -> Folder:
    """Look through a folder. Raises UsageError where copying it for each trial would take long."""
    if os.path.dirname(top) == top:
        raise UsageError(f"cannot make scratch copies of {top}: run from the program's own folder")
    found = _survey(top, os.stat(top), leave_out, _Bounds(top), outermost=True)
    copies = list(_copied(found))
    if len(copies) > MOST_FILES or sum(copies) > MOST_BYTES:
        raise _too_much(top)
    return found


def _survey(
    path: str,
    status: os.stat_result,
    leave_out: Collection[str],
    bounds: _Bounds,
    outermost: bool = False,
) -> Folder:
    folder = Folder(path, status)
    try:
        entries = os.scandir(path)
    except OSError:
        return folder
    with entries:
        for entry in entries:
            bounds.look()
            folder.seen += 1
            try:
                _add(folder, entry, leave_out, bounds)
            except OSError:
                continue  # gone meanwhile, or not ours to see
            if folder.seen > _ENOUGH and not folder.python and not outermost:
                folder.whole = folder.data = True
                return folder
    large = folder.bytes > _DATA_BYTES or folder.files > _DATA_FILES
    folder.whole = folder.data = large and not folder.python and not outermost
    return folder


def _add(
    folder: Folder, entry: os.DirEntry[str], leave_out: Collection[str], bounds: _Bounds
) -> None:
    if entry.is_symlink():
        folder.links.append(entry.name)
        return
    status = entry.stat(follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        if entry.name in _LEFT_OUT or entry.path in leave_out:
            return
        if entry.name in _WHOLE or os.path.lexists(os.path.join(entry.path, "pyvenv.cfg")):
            folder.folders.append(Folder(entry.path, status, whole=True))
            return
        inner = _survey(entry.path, status, leave_out, bounds)
        folder.folders.append(inner)
        folder.python |= inner.python
        folder.files += inner.files
        folder.bytes += inner.bytes
        folder.seen += 0 if inner.whole else inner.seen
    elif stat.S_ISREG(status.st_mode):
        source = entry.name.endswith(".py")
        small = source or status.st_size <= SMALL_BYTES
        (folder.copied if small else folder.linked).append((entry.name, status))
        folder.python |= source
        folder.files += 1
        folder.bytes += status.st_size


def _copied(folder: Folder) -> list[int]:
    """Sizes of all files that would be copied."""
    if folder.whole:
        return []
    sizes = [status.st_size for _, status in folder.copied]
    for inner in folder.folders:
        sizes += _copied(inner)
    return sizes


def _too_much(top: str) -> UsageError:
    return UsageError(
        f"{top} is too large to copy for each trial (over {MOST_FILES:,} small files, or 1 GiB of"
        " them): run from the program's own folder, or keep data in folders without Python sources"
    )
