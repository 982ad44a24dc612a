"""A copy of the user's working directory for a trial to work in: nothing in it is the user's.

Folders are real, small files and sources are copies, large files and data folders are symbolic
links, which the guard in the program's process replaces by copies before they are written.
"""

import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.record.errors import UsageError
from stepscope.tune.scratch_build import Linked, beside, build, state_of, under
from stepscope.tune.scratch_survey import Folder, survey


@dataclass(frozen=True, slots=True)
class Scratch:
    """A scratch copy. `root` holds all of it, `folder` stands for the `original`."""

    root: Path
    folder: Path
    original: Path
    linked: tuple[Linked, ...]
    found: Folder | None = None
    """The original as it was looked through."""
    fresh: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Inode and time of the last change of all there is in a copy no program has worked in."""

    def changed(self) -> list[str]:
        """Paths of the user's that are no longer as they were, though only linked."""
        return [each.path for each in self.linked if state_of(each.path) != (each,)]


def make(original: Path, place: Path, leave_out: Iterable[Path] = ()) -> Scratch:
    """Copy the working directory `original` into the new folder `place`.

    `leave_out` names folders in it that no program is to see, such as those of other trials.
    Raises UsageError where it is too large.
    """
    original, place = original.resolve(), place.resolve()
    left = {str(place), *(str(path.resolve()) for path in leave_out)}
    found = survey(str(original), left)
    try:
        place.mkdir(parents=True)
        try:
            return _copied(found, original, place)
        except OSError:
            shutil.rmtree(place, ignore_errors=True)
            raise
    except OSError as problem:
        raise _cannot(original, place, problem) from None


def renew(scratch: Scratch) -> Scratch:
    """The copy as it was made: only what a program has changed in it is copied again.

    Deleting it all and copying anew is slow on file systems that are slow to give away what has
    just been freed. Raises UsageError like `make`.
    """
    original, place = scratch.original, scratch.root
    found = scratch.found or survey(str(original), {str(place)})
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, state in _states(str(place)).items():
            if scratch.fresh.get(path) != state and os.path.lexists(path):
                if os.path.isdir(path) and not os.path.islink(path):
                    _remove(path)
                else:
                    os.unlink(path)
        return _copied(found, original, place)
    except OSError as problem:
        raise _cannot(original, place, problem) from None


def remove(scratch: Scratch) -> None:
    """Delete the copy; what its links lead to stays."""
    _remove(str(scratch.root))


def place_of(text: str, scratch: Scratch) -> str:
    """A script or argument as the trial is to have it: paths into the original lead to the copy.

    Only absolute paths are meant, also behind the `=` of an option; all else stays as it is.
    """
    before, equals, path = text.partition("=") if text.startswith("-") else ("", "", text)
    if not os.path.isabs(path):
        return text
    for top in {str(scratch.original), os.path.abspath(os.environ.get("PWD", os.curdir))}:
        if os.path.realpath(top) == str(scratch.original) and under(path, top):
            inner = os.path.relpath(path, top)
            return before + equals + os.path.normpath(os.path.join(scratch.folder, inner))
    return text


def _copied(found: Folder, original: Path, place: Path) -> Scratch:
    """Put in place what is not there."""
    linked: list[Linked] = []
    folder = beside(original, place) / original.name
    build(found, str(folder), (str(original), str(folder)), linked)
    return Scratch(place, folder, original, tuple(linked), found, _states(str(place)))


def _remove(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.isdir(folder):  # the program has taken away the right to delete
        for here, names, _ in os.walk(folder):
            for path in (os.path.join(here, name) for name in names):
                if not os.path.islink(path):
                    os.chmod(path, 0o700)
        shutil.rmtree(folder, ignore_errors=True)


def _states(folder: str) -> dict[str, tuple[int, int]]:
    """Inode and time of the last change of all below; of folders the inode alone.

    A folder from which a program has taken our rights gets them back.
    """
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
