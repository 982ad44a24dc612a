"""The run folder of a trial, once it has ended: the user's own paths in it, and nothing large."""

import gzip
import json
import os
from pathlib import Path

OUTPUT = "output.txt"
_TAIL = 1 << 20
_LONGEST = 300
_TEXTS = ("facts.jsonl", "sources.json")
_TRACES = "*.pt.trace.json.gz"


def tidy(folder: Path, scratch: Path, original: Path) -> None:
    """Name files as the user knows them, not as they were in the scratch copy; cut the output."""
    for name in _TEXTS:
        path = folder / name
        if path.is_file():
            path.write_bytes(_renamed(path.read_bytes(), scratch, original))
    for path in folder.glob(_TRACES):
        with gzip.open(path, "rb") as file:
            content = file.read()
        renamed = _renamed(content, scratch, original)
        if renamed != content:
            path.write_bytes(gzip.compress(renamed, compresslevel=5))
    _cut(folder / OUTPUT)


def last_line(folder: Path) -> str:
    """The last thing the program said."""
    try:
        content = (folder / OUTPUT).read_bytes()[-8192:]
    except OSError:
        return ""
    spoken = [line.strip() for line in content.decode(errors="replace").split("\n") if line.strip()]
    return spoken[-1][:_LONGEST] if spoken else ""


def _renamed(content: bytes, scratch: Path, original: Path) -> bytes:
    for written in (str, _as_json):
        content = content.replace(
            os.fsencode(written(scratch) + "/"), os.fsencode(written(original) + "/")
        )
    return content


def _as_json(path: Path) -> str:
    return json.dumps(str(path))[1:-1]


def _cut(path: Path) -> None:
    """Keep the end of what the program said."""
    try:
        if path.stat().st_size > _TAIL:
            with open(path, "rb") as file:
                file.seek(-_TAIL, os.SEEK_END)
                tail = file.read()
            path.write_bytes(tail)
    except OSError:
        pass
