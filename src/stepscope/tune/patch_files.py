"""Which files a patch may change: the user's own, and only as they were when the program ran."""

import os
import tokenize
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from stepscope.record.frames import is_program
from stepscope.store.facts import read_facts
from stepscope.store.source import read_sources
from stepscope.tune.patch_source import PatchError, Source

_NOT_HIS = ("site-packages", "dist-packages", "node_modules", "__pycache__")
_CLOCK_S = 1.0  # runs tell their start in whole seconds
_ODD = set('"\\\t\n\r')
Site = tuple[str, int]


class Files:
    """The files of a working directory, looked at beside a run of the program in it."""

    def __init__(self, cwd: Path, seen: Mapping[str, Any]) -> None:
        self._cwd = cwd.resolve()
        self._seen = seen["run"]
        folder = Path(self._seen["folder"])
        self._ran = {
            self._name(file): lines for file, lines in read_sources(folder).items() if lines
        }
        self._facts = read_facts(folder / "facts.jsonl")["site"]
        self._read: dict[str, Source] = {}

    def source(self, name: str) -> Source:
        """A file by its path from the working directory. Raises PatchError."""
        if name not in self._read:
            self._read[name] = self._checked(name)
        return self._read[name]

    def sites(self, *kinds: str) -> list[Site]:
        """Lines at which the program did something, in order of appearance."""
        found = [(self._name(f["file"]), f["line"]) for f in self._facts if f["what"] in kinds]
        return list(dict.fromkeys(found))

    def through(self, name: str, line: int) -> str | None:
        """The library that a line calls to do what it does; None where that is torch."""
        there = (f for f in self._facts if f["line"] == line and self._name(f["file"]) == name)
        return next((f["through"] for f in there if f.get("through")), None)

    def beginnings(self) -> list[str]:
        """Files in which the program may begin, the likeliest first."""
        program = str(self._seen["program"])
        if program.startswith("-m "):
            path = program.removeprefix("-m ").replace(".", "/")
            first = [f"{path}.py", f"{path}/__main__.py"]
        else:
            first = [self._name(program)]
        called = [file for file, _ in self.sites("forward", "evaluation")]
        return [name for name in dict.fromkeys([*first, *called]) if (self._cwd / name).is_file()]

    def _name(self, file: str) -> str:
        """As the user names it: from the working directory."""
        return os.path.relpath(self._cwd / file, self._cwd)

    def _checked(self, name: str) -> Source:
        path = self._cwd / name
        if not self._is_his(name):
            raise PatchError(f"{name} is no file of the project here")
        try:
            raw = path.read_bytes()
            changed = path.stat().st_mtime
            with open(path, "rb") as file:
                encoding, _ = tokenize.detect_encoding(file.readline)
            source = Source(raw.decode(encoding))
        except (OSError, ValueError, SyntaxError, RecursionError):
            raise PatchError(f"{name} cannot be read") from None
        if encoding != "utf-8" or _ODD & set(name):
            raise PatchError(f"{name} is not in UTF-8")
        ran = self._ran.get(name)
        if ran is None:
            raise PatchError(f"no line of {name} was seen running")
        count = source.text.count("\n") + 1
        same = all(n <= count and source.line(n) == line for n, line in ran.items())
        if not same or changed > self._started() + _CLOCK_S:
            raise PatchError(f"{name} was changed since it ran")
        return source

    def _started(self) -> float:
        return datetime.fromisoformat(self._seen["started"]).timestamp()

    def _is_his(self, name: str) -> bool:
        path = self._cwd / name
        parts = Path(name).parts
        return (
            path.is_file()
            and path.resolve().is_relative_to(self._cwd)
            and is_program(str(path))
            and not any(part.startswith(".") or part in _NOT_HIS for part in parts)
            and not any((up / "pyvenv.cfg").exists() for up in path.parents if up != self._cwd)
        )
