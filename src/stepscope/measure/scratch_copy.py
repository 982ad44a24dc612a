"""A copy of the user's working directory for a trial to work in; nothing in it is the original.
Folders are real, small files and sources are copied, large files and data folders are symbolic
links, which the guard in the program's process replaces with copies before a write."""

import os
import shutil
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from stepscope.record.errors import UsageError

SMALL_BYTES = 1 << 20
"""Files up to this size are copied, larger ones linked; Python sources are always copied."""
MOST_BYTES = 1 << 30
MOST_FILES = 20_000
_MOST_SEEN = 200_000
_DATA_BYTES = 64 << 20
_DATA_FILES = 2_000
_ENOUGH = 20_000
"""A folder with this many entries and no Python source among them counts as data."""

_LEFT_OUT = {".stepscope", "__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache"}
_WHOLE = {".git", ".hg", ".svn", ".venv", "venv", "node_modules", ".tox", ".nox"}


@dataclass(slots=True)
class Folder:
    """A user's folder as a trial will see it."""

    path: str
    status: os.stat_result
    whole: bool = False  # linked as a whole, its content not surveyed
    data: bool = False  # linked because it holds data, not because of its name
    copied: list[tuple[str, os.stat_result]] = field(default_factory=list)
    linked: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)  # the user's own symbolic links
    folders: list["Folder"] = field(default_factory=list)
    python: bool = False  # whether a Python source is anywhere in it
    files: int = 0
    bytes: int = 0
    seen: int = 0


def survey_folder(top: str, leave_out: Collection[str] = ()) -> Folder:
    """Survey a folder. Raises UsageError if copying it for each trial would take too long."""
    if os.path.dirname(top) == top:
        raise UsageError(f"cannot make scratch copies of {top}: run from the program's own folder")
    found = _Survey(top, leave_out).folder(top, os.stat(top))
    copies = list(_copied_sizes(found))
    if len(copies) > MOST_FILES or sum(copies) > MOST_BYTES:
        raise _too_much(top)
    return found


@dataclass(slots=True)
class _Survey:
    top: str
    leave_out: Collection[str]
    seen: int = 0

    def folder(self, path: str, status: os.stat_result) -> Folder:
        folder, outermost = Folder(path, status), path == self.top
        try:
            entries = os.scandir(path)
        except OSError:
            return folder
        with entries:
            for entry in entries:
                self.seen += 1
                if self.seen > _MOST_SEEN:
                    raise _too_much(self.top)
                folder.seen += 1
                try:
                    self._add(folder, entry)
                except OSError:
                    continue  # gone meanwhile, or not readable
                if folder.seen > _ENOUGH and not folder.python and not outermost:
                    folder.whole = folder.data = True
                    return folder
        large = folder.bytes > _DATA_BYTES or folder.files > _DATA_FILES
        folder.whole = folder.data = large and not folder.python and not outermost
        return folder

    def _add(self, folder: Folder, entry: os.DirEntry[str]) -> None:
        if entry.is_symlink():
            folder.links.append(entry.name)
            return
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            if entry.name in _LEFT_OUT or entry.path in self.leave_out:
                return
            if entry.name in _WHOLE or os.path.lexists(os.path.join(entry.path, "pyvenv.cfg")):
                folder.folders.append(Folder(entry.path, status, whole=True))
                return
            inner = self.folder(entry.path, status)
            folder.folders.append(inner)
            folder.python |= inner.python
            folder.files += inner.files
            folder.bytes += inner.bytes
            folder.seen += 0 if inner.whole else inner.seen
        elif stat.S_ISREG(status.st_mode):
            source = entry.name.endswith(".py")
            if source or status.st_size <= SMALL_BYTES:
                folder.copied.append((entry.name, status))
            else:
                folder.linked.append(entry.name)
            folder.python |= source
            folder.files += 1
            folder.bytes += status.st_size


def _copied_sizes(folder: Folder) -> list[int]:
    if folder.whole:
        return []
    sizes = [status.st_size for _, status in folder.copied]
    for inner in folder.folders:
        sizes += _copied_sizes(inner)
    return sizes


def _too_much(top: str) -> UsageError:
    return UsageError(
        f"{top} is too large to copy for each trial (over {MOST_FILES:,} small files, or 1 GiB of"
        " them): run from the program's own folder, or keep data in folders without Python sources"
    )


_LEVELS = 3  # levels above the working directory that exist too, so that `../data` works
_MOST_BESIDE = 5_000


_FileState = tuple[int, int, int]  # size, time of the last change and inode


def _mirror_parents(original: Path, place: Path) -> Path:
    """Make stand-ins for the folders above, each with links to its other entries; returns the
    lowest."""
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
            continue  # not readable for the program either
    return here


def _build_copy(
    found: Folder, target: str, tops: tuple[str, str], linked: dict[str, _FileState | None]
) -> None:
    """Build a user's folder at `target`; `tops` are the original and its copy. Linked paths are
    added to `linked`."""
    os.makedirs(target, 0o700, exist_ok=True)
    for name, status in found.copied:
        _copy(os.path.join(found.path, name), os.path.join(target, name), status)
    for name in found.linked:
        path = os.path.join(found.path, name)
        _link(path, os.path.join(target, name))
        linked[path] = _file_state(path)
    for name in found.links:
        _keep_link(os.path.join(found.path, name), os.path.join(target, name), tops)
    for inner in found.folders:
        there = os.path.join(target, os.path.basename(inner.path))
        if inner.whole:
            _link(inner.path, there)
            if inner.data:
                linked[inner.path] = _file_state(inner.path)
        else:
            _build_copy(inner, there, tops, linked)
    os.utime(target, ns=(found.status.st_atime_ns, found.status.st_mtime_ns))
    os.chmod(target, stat.S_IMODE(found.status.st_mode) | 0o700)


def _copy(source: str, target: str, status: os.stat_result) -> None:
    """Copy content, mode and time of a file; an unreadable one is skipped."""
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
    """Keep a user's link: within the tree it points into the copy, else to its old target."""
    leads = os.readlink(link)
    full = os.path.normpath(os.path.join(os.path.dirname(link), leads))
    if not os.path.exists(link):
        return
    if not _is_under(full, tops[0]):
        _link(full, target)
    elif os.path.isabs(leads):
        _link(os.path.join(tops[1], os.path.relpath(full, tops[0])), target)
    else:
        _link(leads, target)


def _link(leads: str, target: str) -> None:
    if not os.path.lexists(target):
        os.symlink(leads, target)


def _file_state(path: str) -> _FileState | None:
    try:
        status = os.lstat(path)
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns, status.st_ino


def _is_under(path: str, top: str) -> bool:
    return path == top or path.startswith(top.rstrip("/") + "/")


@dataclass(frozen=True, slots=True)
class Scratch:
    """A scratch copy. `root` holds all of it, `folder` stands for the `original`."""

    root: Path
    folder: Path
    original: Path
    linked: Mapping[str, _FileState | None]  # states of the copy's link targets before any trial
    found: Folder  # the survey of the original
    fresh: Mapping[str, tuple[int, int]]
    """Inode and modification time of everything in a copy that no program has used."""

    def changed(self) -> list[str]:
        """The user's linked paths that have changed."""
        return [path for path, before in self.linked.items() if _file_state(path) != before]


def make_scratch(original: Path, place: Path, leave_out: Iterable[Path] = ()) -> Scratch:
    """Copy the working directory `original` into the new folder `place`. `leave_out` names folders
    in it that no program may see, such as those of other trials. Raises UsageError if it is too
    large."""
    original, place = original.resolve(), place.resolve()
    left = {str(place), *(str(path.resolve()) for path in leave_out)}
    found = survey_folder(str(original), left)
    try:
        place.mkdir(parents=True)
        try:
            return _copied(found, original, place)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except OSError as problem:
        raise _cannot(original, place, problem) from None


def renew_scratch(scratch: Scratch) -> Scratch:
    """Restore the copy, recopying only what a program has changed. Deleting and recopying
    everything is slow on file systems that are slow to reuse freed space. Raises UsageError like
    `make`."""
    original, place = scratch.original, scratch.root
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, state in _states(str(place)).items():
            if scratch.fresh.get(path) != state and os.path.lexists(path):
                if os.path.isdir(path) and not os.path.islink(path):
                    remove_scratch(path)
                else:
                    os.unlink(path)
        return _copied(scratch.found, original, place)
    except OSError as problem:
        raise _cannot(original, place, problem) from None


def remove_scratch(folder: Path | str) -> None:
    """Delete a copy, or a folder in it; link targets stay."""
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder):  # the program has removed the permission to delete
        for here, names, _ in os.walk(folder):
            for path in (os.path.join(here, name) for name in names):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def path_in_scratch(text: str, scratch: Scratch) -> str:
    """A script or argument for the trial: absolute paths into the original, also after the `=` of
    an option, point to the copy; everything else stays."""
    before, equals, path = text.partition("=") if text.startswith("-") else ("", "", text)
    if not os.path.isabs(path):
        return text
    for top in {str(scratch.original), os.path.abspath(os.environ.get("PWD", os.curdir))}:
        if os.path.realpath(top) == str(scratch.original) and _is_under(path, top):
            inner = os.path.relpath(path, top)
            return before + equals + os.path.normpath(os.path.join(scratch.folder, inner))
    return text


def _copied(found: Folder, original: Path, place: Path) -> Scratch:
    """Copy what is missing."""
    linked: dict[str, _FileState | None] = {}
    folder = _mirror_parents(original, place) / original.name
    _build_copy(found, str(folder), (str(original), str(folder)), linked)
    return Scratch(place, folder, original, linked, found, _states(str(place)))


def _states(folder: str) -> dict[str, tuple[int, int]]:
    """Inode and modification time of everything below; for folders the inode alone. Restores our
    permissions on folders where a program removed them."""
    found: dict[str, tuple[int, int]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                found[entry.path] = status.st_ino, 0
                if status.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                    os.chmod(entry.path, stat.S_IRWXU)
                found |= _states(entry.path)
            else:
                found[entry.path] = status.st_ino, status.st_ctime_ns
    return found


def _cannot(original: Path, place: Path, problem: OSError) -> UsageError:
    return UsageError(
        f"cannot copy {original} to {place}: {problem.strerror}; name another folder with --out"
    )
