"""What surrounds a program in a trial: variables of its environment, and where it may write."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.options import Guard
from stepscope.tune.scratch import Scratch, place_of
from stepscope.tune.trackers import (
    allowed_places,
    places_environment,
    quiet_environment,
)

CACHES = "caches"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """`variables` come on top of this process's own."""

    variables: dict[str, str]
    guard: Guard


@contextmanager
def surroundings(
    tune: Path, trial: Path, tmp: Path, scratch: Scratch, refuse: bool
) -> Iterator[Surroundings]:
    """For one trial in its scratch copy: `trial` is its run folder, `tune` the folder of them all,
    `tmp` the one for temporary files, which is empty again afterwards.

    With `refuse`, a write elsewhere ends the program; else it is only noted. What was compiled
    stays for the trials that follow.
    """
    caches = tune / CACHES
    caches.mkdir(exist_ok=True)
    try:
        variables = {
            **quiet_environment(tmp),
            **places_environment(tmp, caches),
            **_paths(scratch),
            "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0"),
        }
        allowed = allowed_places((trial, tmp, caches, scratch.root), scratch.original)
        guard = Guard(str(scratch.folder), str(scratch.original), allowed, refuse)
        yield Surroundings(variables, guard)
    finally:
        _empty(tmp)


def _empty(folder: Path) -> None:
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def _paths(scratch: Scratch) -> dict[str, str]:
    """The variables that would lead the program to the originals."""
    found = {"PWD": str(scratch.folder)}
    path = os.environ.get("PYTHONPATH")
    if path:
        entries = (place_of(entry, scratch) for entry in path.split(os.pathsep))
        found["PYTHONPATH"] = os.pathsep.join(entries)
    return found
