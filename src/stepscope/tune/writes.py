"""What a trial has written, or would have, that is not its own."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError

_DENIED = re.compile(r"Permission denied\W*[:\[({\"' ]+(/[^\"'\])}\n]+)")
_ADVICE = "--allow-writes lets trials do so"


def check_writes(
    facts: Mapping[str, Sequence[Mapping[str, Any]]], changed: Sequence[str], cwd: Path
) -> None:
    """Raise UsageError where a trial reached outside its scratch copy: that ends the whole tune.

    `changed` are paths of the user's that are not as they were, though nobody was seen to write.
    """
    for fact in facts["wrote_outside"]:
        what, path = fact["what"], fact["path"]
        where = "" if what == "send to" else ", outside the working directory"
        raise UsageError(f"{_line(fact, cwd)} would {what} {path}{where}: {_ADVICE}")
    if changed:
        raise UsageError(f"{changed[0]} was changed while a trial ran: {_ADVICE}")


def check_denied(said: str, scratch: Path) -> None:
    """Raise UsageError where a program ended since the kernel kept it from writing a file that it
    may write otherwise. `said` is what it said last: native code shows its files nowhere else."""
    found = _DENIED.search(said)
    if found is None:
        return
    path = Path(found[1])
    if not path.is_relative_to(scratch) and _writable(path):
        raise UsageError(
            f"the program would write {path}, outside the working directory: {_ADVICE}"
        )


def _writable(path: Path) -> bool:
    there = next((place for place in (path, *path.parents) if place.exists()), path)
    return os.access(there, os.W_OK)


def _line(fact: Mapping[str, Any], cwd: Path) -> str:
    """The line that writes, as the user would name it."""
    if not fact.get("file"):
        return "the program"
    near = os.path.relpath(fact["file"], cwd)
    return f"{fact['file'] if near.startswith('..') else near}:{fact['line']}"
