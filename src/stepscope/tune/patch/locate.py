"""From a fix and the places where it was applied to edits of the user's files, and which files may
be edited at all.
"""

import ast
import os
import re
import tokenize
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from stepscope.fixes.base import Fix
from stepscope.fixes.launching.compile import CLASS_OF_TORCH
from stepscope.fixes.registry import TRAINER_LIBRARIES, trainer_settings
from stepscope.record.frames import is_program
from stepscope.store.json_lines import read_facts
from stepscope.store.source import read_sources
from stepscope.tune.patch import calls
from stepscope.tune.patch.calls import CallArguments
from stepscope.tune.patch.models import model_called
from stepscope.tune.patch.source import Change, PatchError, Source
from stepscope.tune.patch.statements import (
    after_imports,
    before_imports,
    imports_torch,
    summed_late,
    under_autocast,
    without_synchronize,
)

_NOT_HIS = ("site-packages", "dist-packages", "node_modules", "__pycache__")
_CLOCK_S = 1.0  # runs tell their start in whole seconds
_ODD = set('"\\\t\n\r')
Site = tuple[str, int]


class SourceFiles:
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


_PLACE = re.compile(r"\bat (\S.*?):(\d+)(?!\d)")
_MODEL = re.compile(r"(\S+), called at (\S.*?):(\d+)(?!\d)")
_COMPILE = re.compile(r"model\.compile\(.*?\)")
_CAST = re.compile(r" in (bf16|fp16) on (\w+)")
_OWN_SETTING = re.compile(r"over the program's own|asks for")


@dataclass(frozen=True, slots=True)
class PatchPart:
    """One edit of a patch: arguments of calls, or changes of the text."""

    fix: str
    file: str
    line: int
    words: str
    arguments: tuple[CallArguments, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftToUser:
    """A place that is left to the user, and why."""

    place: str
    why: str


def locate_edits(
    fix: Fix, value: Any, applied: Mapping[str, Any], files: SourceFiles
) -> list[PatchPart | LeftToUser]:
    """The parts that write a fix into the source; nothing where it is only words."""
    where = [str(text) for text in applied.get("where", ())]
    find = _FINDERS.get(fix.name, _by_arguments)
    setting = _setting(fix, value, where, files)
    if isinstance(setting, PatchPart):
        return [setting]
    found = list(find(fix, value, where, files))
    return (
        found if setting is None or any(isinstance(one, PatchPart) for one in found) else [setting]
    )


def _setting(
    fix: Fix, value: Any, where: list[str], files: SourceFiles
) -> PatchPart | LeftToUser | None:
    """A setting of the trainer under which a fix took hold; None where there is no trainer, or it
    has no such setting."""
    cast = _CAST.search(" ".join(where))
    if cast and cast[2] == "cpu":
        return None  # the trainers take half precision on other devices only
    values = trainer_settings(fix.name, cast[1] if cast else value)
    places = files.sites("forward") if cast else _places(where)
    for name, line in places if values else ():
        if files.through(name, line) not in TRAINER_LIBRARIES:
            continue
        try:
            found = calls.trainer_setting(files.source(name), values)
        except PatchError as problem:
            return LeftToUser(f"{name}:{line}", str(problem))
        words = calls.setting_words(found)
        return PatchPart(fix.name, name, found.call.lineno, words, arguments=(found,))
    return None


FoundEdits = Iterator[PatchPart | LeftToUser]


def _try(
    fix: Fix, words: str, name: str, line: int, make: Callable[[], list[Change]]
) -> FoundEdits:
    try:
        yield PatchPart(fix.name, name, line, words, changes=tuple(make()))
    except PatchError as problem:
        yield LeftToUser(f"{name}:{line}", str(problem))


def _by_arguments(fix: Fix, value: Any, where: list[str], files: SourceFiles) -> FoundEdits:
    for name, line in _places([text.partition(" (")[0] for text in where]):  # without remarks
        try:
            statement = files.source(name).statement(line)
            if statement is None:
                raise PatchError("no statement begins there")
            edit = fix.edit(value, calls.head_line(statement))
            found = calls.changed_arguments(statement, edit)
            if not found:
                raise PatchError("the call is not written there")
            if calls.callee(found[0].call) in ("to", "cuda"):
                found = _moves(files.source(name), statement, found[0])
            yield PatchPart(fix.name, name, line, edit.words, arguments=tuple(found))
        except PatchError as problem:
            yield LeftToUser(f"{name}:{line}", str(problem))


def _moves(source: Source, statement: ast.stmt, found: CallArguments) -> list[CallArguments]:
    """The same for the moves beside one: inputs and targets go to the device in turn."""
    moves = calls.same_calls(statement, found)
    body = getattr(source.parents[statement], "body", [])
    at = body.index(statement) if statement in body else 0
    for beside in (reversed(body[:at]), body[at + 1 :]):
        for other in beside:
            call = other.value if isinstance(other, ast.Assign) else None
            if not isinstance(call, ast.Call) or not _alike(call, found.call):
                break
            moves.append(CallArguments(call, found.values))
    return moves


def _alike(one: ast.Call, other: ast.Call) -> bool:
    return calls.callee(one) == calls.callee(other) and [
        ast.dump(part) for part in (*one.args, *one.keywords)
    ] == [ast.dump(part) for part in (*other.args, *other.keywords)]


def _at_the_top(fix: Fix, value: Any, where: list[str], files: SourceFiles) -> FoundEdits:
    """Switches of torch, in the file where the program begins."""
    own = [name for name, _ in _places([text for text in where if _OWN_SETTING.search(text)])]
    if own:
        yield LeftToUser(own[0], "the program sets it otherwise itself")
        return
    edit = fix.edit(value, "")
    write = before_imports if fix.name == "expandable_segments" else after_imports
    why = LeftToUser("the program", "its first file was not found")
    for name in files.beginnings():
        try:
            changes = tuple(write(files.source(name), edit.before))
        except PatchError as problem:
            why = LeftToUser(name, str(problem))
            continue
        yield PatchPart(fix.name, name, 1, edit.words, changes=changes)
        return
    yield why


def _at_the_model(fix: Fix, value: Any, where: list[str], files: SourceFiles) -> FoundEdits:
    edit = fix.edit(value, "")
    compiles = _COMPILE.search(edit.words)
    lines = edit.before or ((compiles[0],) if compiles else ())
    of_torch = [text for text in where if compiles and CLASS_OF_TORCH in text]
    for _, name, line in _models(of_torch):
        yield LeftToUser(
            f"{name}:{line}", f"{CLASS_OF_TORCH}, which needs model = torch.compile(model, …)"
        )
    where = [text for text in where if text not in of_torch]
    for kind, name, line in dict.fromkeys(_models(where)):

        def make(kind: str = kind, name: str = name, line: int = line) -> list[Change]:
            source = files.source(name)
            model = model_called(source, line, kind)
            written = [re.sub(r"\bmodel\b", lambda _: model.name, text) for text in lines]
            needed = imports_torch(source) if "torch." in "".join(lines) else []
            return [*needed, source.after(model.made, written, order=0 if edit.before else 1)]

        yield from _try(fix, edit.words, name, line, make)


def _autocast(fix: Fix, value: Any, where: list[str], files: SourceFiles) -> FoundEdits:
    cast = next((found for text in where if (found := _CAST.search(text))), None)
    if cast is None or cast[1] != "bf16":
        return  # float16 takes a loss scale too
    edit = fix.edit("bf16", "")
    context = edit.before[0].replace('"cuda"', f'"{cast[2]}"')
    for name, line in files.sites("forward", "evaluation"):

        def make(name: str = name, line: int = line) -> list[Change]:
            return under_autocast(files.source(name), line, context)

        yield from _try(fix, edit.words, name, line, make)


def _in_the_loop(fix: Fix, value: Any, where: list[str], files: SourceFiles) -> FoundEdits:
    write = summed_late if fix.name == "lazyitem" else without_synchronize
    for name, line in _places(where):

        def make(name: str = name, line: int = line) -> list[Change]:
            return write(files.source(name), line)

        yield from _try(fix, fix.edit(value, "").words, name, line, make)


def _places(where: list[str]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((p[1], int(p[2])) for text in where for p in _PLACE.finditer(text)))


def _models(where: list[str]) -> list[tuple[str, str, int]]:
    return [(p[1], p[2], int(p[3])) for text in where for p in _MODEL.finditer(text)]


def _by_hand(fix: Fix, value: Any, where: list[str], files: SourceFiles) -> FoundEdits:
    return iter(())


_FINDERS: dict[str, Callable[[Fix, Any, list[str], SourceFiles], FoundEdits]] = {
    **dict.fromkeys(("tf32", "cudnn_benchmark", "threads", "expandable_segments"), _at_the_top),
    **dict.fromkeys(("channels_last", "compile"), _at_the_model),
    **dict.fromkeys(("nosync", "lazyitem"), _in_the_loop),
    **dict.fromkeys(("affinity", "cache", "prefetch", "recycle", "cuda_graph"), _by_hand),
    **dict.fromkeys(("accumulate", "checkpointing"), _by_hand),
    "amp": _autocast,
}
"""How each fix is written; those that change a call's arguments are not listed."""
