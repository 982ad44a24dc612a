"""Unified diffs: written for `git apply` and `patch -p1`, and applied again to the same text."""

import os
import re
import stat
from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

from stepscope.record.errors import UsageError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")
_NO_END = "\\ No newline at end of file"


def make_diff(path: str, before: str, after: str) -> str:
    """The diff that turns one text of a file into another."""
    tab = "\t" if " " in path else ""  # ends a name with spaces
    found = unified_diff(
        _lines(before), _lines(after), f"a/{path}{tab}", f"b/{path}{tab}", lineterm="\n"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END}\n" for line in found)


def apply_diff(folder: Path, text: str) -> None:
    """Apply a diff of ours to the files of a folder.

    Raises UsageError if they are not what it was made for. A link is replaced by a file: its target
    does not change.
    """
    for name, hunks in _files(text):
        path = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UsageError(f"the patch names a file outside the folder: {name}")
        try:
            before = _lines(path.read_bytes().decode())
            mode = stat.S_IMODE(path.stat().st_mode)
        except (OSError, UnicodeDecodeError):
            raise UsageError(f"the patch does not apply: {name} cannot be read") from None
        after = "".join(_patched(name, before, hunks))
        part = path.with_name(f"{path.name}.stepscope-part")
        part.write_bytes(after.encode())
        os.chmod(part, mode)
        part.replace(path)


def _lines(text: str) -> list[str]:
    """Lines with their endings; only \\n ends a line, as in git."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    return lines if lines[-1] else lines[:-1]


def _files(text: str) -> Iterator[tuple[str, list[list[str]]]]:
    """The files of a diff, each with its hunks as raw lines, header first."""
    name, hunks = "", list[list[str]]()
    for line in _lines(text):
        if line.startswith("--- a/") and (not hunks or _whole(hunks[-1])):
            if hunks:
                yield name, hunks
            name, hunks = line[len("--- a/") :].rstrip("\n").rstrip("\t"), []
        elif line.startswith("@@ "):
            hunks.append([line])
        elif hunks:
            if line.startswith(_NO_END[:2]):
                hunks[-1][-1] = hunks[-1][-1].removesuffix("\n")
            else:
                hunks[-1].append(line)
    if hunks:
        yield name, hunks


def _whole(hunk: list[str]) -> bool:
    """Whether a hunk has all the lines its header promises, so that a new header follows."""
    head = _HUNK.match(hunk[0])
    wanted = int(head[2] or 1) if head else 0
    return sum(line[0] in " -" for line in hunk[1:]) >= wanted


def _patched(name: str, before: list[str], hunks: list[list[str]]) -> Iterator[str]:
    at = 0
    for head, *lines in hunks:
        found = _HUNK.match(head)
        old = [line[1:] for line in lines if line[0] in " -"]
        start = int(found[1]) - (found[2] != "0") if found else -1
        if start < at or before[start : start + len(old)] != old:
            raise UsageError(f"the patch does not apply: {name} has changed since")
        yield from before[at:start]
        yield from (line[1:] for line in lines if line[0] in " +")
        at = start + len(old)
    yield from before[at:]
