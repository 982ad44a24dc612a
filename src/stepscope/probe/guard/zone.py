"""Where a trial's program may write. Links in the scratch copy are replaced by what they lead to,
and paths that would lead back to the original are redirected.
"""

import ctypes
import fcntl
import functools
import os
import shutil
import stat
import sys
from collections.abc import Iterable
from threading import Lock
from typing import Any

from stepscope.probe.patches import Patches

_HERE, _EXCHANGE = -100, 2


def _replace_with_folder(link: str, real: str, fresh: str) -> None:
    """A link to a folder becomes a folder with links to the entries of the other."""
    os.mkdir(fresh, 0o700)
    with os.scandir(real) as entries:
        for entry in entries:
            os.symlink(entry.path, os.path.join(fresh, entry.name))
    shutil.copystat(real, fresh)
    os.chmod(fresh, stat.S_IMODE(os.stat(real).st_mode) | 0o700)
    swap = getattr(ctypes.CDLL(None), "renameat2", None)  # both names in one step
    if swap and swap(_HERE, os.fsencode(fresh), _HERE, os.fsencode(link), _EXCHANGE) == 0:
        os.unlink(fresh)
    else:
        os.unlink(link)
        os.rename(fresh, link)


real_path = os.path.realpath  # as it is before the guard changes it
_LEVELS = 3  # so many folders above the working directory have stand-ins at most
_LARGEST_COPY = 8 << 30
_SPARE_BYTES = 1 << 30  # what copies must leave free on the disk
_SHARED_MEMORY = real_path("/dev/shm")
_DEVICES = ("/dev", _SHARED_MEMORY, "/proc")
_MOST_UNFOLDED = 50_000


class WriteZone:
    """The scratch copy, in which links to the user's files are not written through."""

    def __init__(
        self,
        scratch: str,
        original: str,
        allowed: Iterable[str],
        stand_ins: Iterable[tuple[str, str]] = (),
    ) -> None:
        """`stand_ins`: folders of links, each with the one of the user's that it stands for."""
        self.scratch = real_path(scratch)
        self.original = real_path(original)
        self.folders = [self.scratch, *map(real_path, allowed)]
        self._pairs = [(self.scratch, self.original)]
        """And the stand-ins above it with what they stand for."""
        while len(self._pairs) <= _LEVELS:
            copy, own = self._pairs[-1]
            if own == "/" or os.path.basename(copy) != os.path.basename(own):
                break
            self._pairs.append((os.path.dirname(copy), os.path.dirname(own)))
        self._shared = _names(_SHARED_MEMORY)
        """What is not the program's in shared memory."""
        highest = self._pairs[-1][0]
        root = highest if self.contains(highest) else self.scratch
        caches = [(real_path(copy), real_path(own)) for copy, own in stand_ins]
        self.copies = [(self.scratch, self.original), *caches]
        """The working directory and caches of the user's, as the program is to know them."""
        self._pairs += caches
        self._roots = [root, *(copy for copy, _ in caches)]
        """Below them links are ours to replace."""
        self._lock = Lock()

    def forked(self) -> None:
        """In a new process no other thread holds the lock."""
        self._lock = Lock()

    def contains(self, path: str) -> bool:
        """Whether a path without links may be written."""
        devices = () if self._is_shared(path) else _DEVICES
        return any(_is_under(path, each) for each in (*self.folders, *devices))

    def _is_shared(self, path: str) -> bool:
        inside = path.removeprefix(_SHARED_MEMORY + "/")
        return inside != path and inside.partition("/")[0] in self._shared

    def settle(self, path: str, follow: bool = True, keep: bool = True) -> str | None:
        """Make sure that a write to `path` stays inside: links on the way become real. `follow`:
        the last part, too, is meant to be followed where it is a link; `keep`: its content is
        needed. Gives the real path where it lies outside, None where all is well."""
        path = os.path.join(os.getcwd(), path)
        here = self.scratch if _is_under(path, self.scratch) else "/"
        parts = [part for part in path[len(here) :].split("/") if part not in ("", ".")]
        for place, part in enumerate(parts):
            last = place == len(parts) - 1
            if part == "..":
                here = os.path.dirname(here)
                continue
            there = os.path.join(here, part)
            try:
                is_link = stat.S_ISLNK(os.lstat(there).st_mode)
            except OSError:  # not there: neither is anything behind it
                return self._outside(os.path.join(there, *parts[place + 1 :]))
            if not is_link or (last and not follow):
                here = there
            elif (root := self._root_of(here)) and not self.contains(real := real_path(there)):
                if not self._replace(there, real, keep, root):
                    return real
                here = there
            else:
                here = real_path(there)
        return self._outside(here)

    def unfold(self, top: str) -> None:
        """Linked folders of the working directory beneath `top` become real. Walking through a tree
        does not enter links, and where the user has a folder it must."""
        folders, left = [real_path(top)], _MOST_UNFOLDED
        while folders and left > 0:
            here = folders.pop()
            if not _is_under(here, self.scratch):
                continue
            with os.scandir(here) as entries:
                inner = [entry.path for entry in entries if entry.is_dir()]
            for path in inner:
                if not os.path.islink(path):
                    folders.append(path)
                elif self._is_linked_data(path):
                    real = os.readlink(path)
                    left -= len(os.listdir(real))
                    if left > 0 and self._replace(path, real, True, self.scratch):
                        folders.append(path)

    def users(self, path: str) -> str:
        """The user's own path for one in the scratch copy, or in the stand-ins above it."""
        for copy, own in self._pairs:
            if _is_under(path, copy):
                return os.path.normpath(f"{own}/{path[len(copy) :]}")
        return path

    def _is_linked_data(self, link: str) -> bool:
        """Whether a link is ours and stands for a folder, not of versions or an environment."""
        own = self.users(link)
        return (
            os.readlink(link) == own
            and not os.path.islink(own)
            and not os.path.basename(own).startswith(".")
            and not os.path.lexists(os.path.join(own, "pyvenv.cfg"))
        )

    def _outside(self, path: str) -> str | None:
        path = os.path.normpath(path)
        return None if self.contains(path) else path

    def _root_of(self, folder: str) -> str | None:
        return next((root for root in self._roots if _is_under(folder, root)), None)

    def _replace(self, link: str, real: str, keep: bool, root: str) -> bool:
        """Put a real folder or file in the place of a link below `root`; False where that cannot
        be."""
        try:
            with self._lock:
                handle = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX)  # one process at a time
                    # Another may have done it meanwhile.
                    return not os.path.islink(link) or self._replaced(link, real, keep)
                finally:
                    os.close(handle)
        except OSError:
            return False

    def _replaced(self, link: str, real: str, keep: bool) -> bool:
        """A file whose content goes anyway is replaced by an empty one."""
        if not os.path.exists(real):
            os.unlink(link)
            return True
        found = os.stat(real)
        folder, name = os.path.split(link)
        fresh = os.path.join(folder, f".{name[:100]}.{os.getpid()}")
        if stat.S_ISDIR(found.st_mode):
            _replace_with_folder(link, real, fresh)
            return True
        largest = min(_LARGEST_COPY, shutil.disk_usage(self.scratch).free - _SPARE_BYTES)
        if not stat.S_ISREG(found.st_mode) or (keep and found.st_size > largest):
            return False
        mode = stat.S_IMODE(found.st_mode)  # from the start: a wall may keep it from changing
        os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode | 0o200))
        if keep:
            shutil.copyfile(real, fresh)
            shutil.copystat(real, fresh)
        else:
            os.chmod(fresh, mode)
        os.replace(fresh, link)
        return True


def _names(folder: str) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def _is_under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def resolve_in_scratch(zone: WriteZone) -> None:
    """Have `os.path.realpath`, and so `Path.resolve`, not lead through our links.
    `Path("data").resolve()` is in the working directory also where the data are only linked."""
    resolved = os.path.realpath

    @functools.wraps(resolved)
    def realpath(filename: Any, **strict: Any) -> Any:
        found = resolved(filename, **strict)
        if not isinstance(found, str):
            return found
        for copy, own in zone.copies:
            if _is_under(found, own) and _is_under(os.path.abspath(os.fspath(filename)), copy):
                return os.path.normpath(copy + found[len(own) :])
        return found

    Patches().set(os.path, "realpath", realpath)


def import_from_scratch(zone: WriteZone) -> None:
    """Have everywhere that Python looks for modules of the original name the scratch copy. So the
    program's own packages come from there also where they are installed in place."""
    sys.path[:] = [_mapped(entry, zone) for entry in sys.path]
    given = os.environ.get("PYTHONPATH")
    if given:
        entries = given.split(os.pathsep)
        os.environ["PYTHONPATH"] = os.pathsep.join(_mapped(entry, zone) for entry in entries)
    for name, module in list(sys.modules.items()):
        places = getattr(module, "MAPPING", None)
        if name.startswith("__editable__") and isinstance(places, dict):
            for package, place in places.items():
                places[package] = _mapped(str(place), zone)


def _mapped(entry: str, zone: WriteZone) -> str:
    """A folder of the original as the scratch copy has it; installed packages stay elsewhere."""
    if not os.path.isabs(entry) or "-packages" in entry or _is_under(entry, sys.prefix):
        return entry
    real = os.path.realpath(entry)
    if not _is_under(real, zone.original):
        return entry
    there = os.path.join(zone.scratch, os.path.relpath(real, zone.original))
    return os.path.normpath(there) if os.path.exists(there) else entry
