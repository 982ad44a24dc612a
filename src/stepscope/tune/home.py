"""The folder of a tune: a fresh one, or one to go on in."""

import shutil
from pathlib import Path

from stepscope.record.errors import UsageError
from stepscope.store import folder as folders
from stepscope.tune.journal import JOURNAL

DOCUMENT, PATCH = "tune.json", "stepscope.patch"
PREFIX = "tune-"


def open_home(out: Path | None, resume: bool, force: bool, cwd: Path) -> Path:
    """Raises UsageError where there is none to go on in, or another is in the way."""
    if resume and out is not None:
        return _found(out, cwd)
    if out is not None and (out / JOURNAL).is_file():
        if folders.in_use(out):
            raise UsageError(f"{out} is in use by a tune under way: name another with --out")
        if not force:
            raise UsageError(
                f"{out} holds a tune: --resume {out} goes on with it, --force replaces it"
            )
        shutil.rmtree(out)
    return folders.create(out, force, cwd, PREFIX)


def _found(name: Path, cwd: Path) -> Path:
    """By path, or by its id among the tunes here."""
    for folder in (name, cwd / folders.HOME / name):
        if (folder / JOURNAL).is_file():
            return folder
    raise UsageError(f"no tune to go on with in {name}: give the folder that tune named")
