"""Turns a fix and the places where it took effect into edits of the user's files, and decides which
files may be edited."""

import ast
import os
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from stepscope.fixes.edit import calls
from stepscope.fixes.edit.calls import TRAINER_LIBRARIES, CallArguments
from stepscope.fixes.edit.models import model_called
from stepscope.fixes.edit.source import Change, PatchError, Source, statement_head
from stepscope.fixes.edit.statements import (
    after_imports,
    applied_at_top,
    apply_call,
    before_imports,
    imports_torch,
    is_run_by_import,
)
from stepscope.record.facts import SiteFact
from stepscope.record.fix import OTHER_TARGET, Applied, SourceEdit, SourceLine
from stepscope.record.frames import is_program
from stepscope.record.privacy import masked_source
from stepscope.store.json_lines import read_facts
from stepscope.store.source import read_sources

_NOT_THE_USERS = ("site-packages", "dist-packages", "node_modules", "__pycache__")
_CLOCK_S = 1.0  # runs record their start in whole seconds
_ODD = set('"\\\t\n\r')


class SourceFiles:
    """The files of a working directory, together with a run of the program in it."""

    def __init__(self, cwd: Path, seen: Mapping[str, Any]) -> None:
        self._cwd = cwd.resolve()
        self._seen = seen["run"]
        folder = Path(self._seen["folder"])
        self._ran = {self._name(name): ran for name, ran in read_sources(folder).items() if ran}
        self._facts = read_facts(folder / "facts.jsonl").all(SiteFact)
        self._read: dict[str, Source] = {}

    def source(self, name: str, ran: bool = True) -> Source:
        """A file by its path from the working directory. Raises PatchError; with `ran` also where
        none of its lines was seen running."""
        if name not in self._read:
            self._read[name] = self._checked(name, ran)
        return self._read[name]

    def sites(self, *kinds: str) -> list[SourceLine]:
        """Lines at which the program did something, in order of appearance."""
        facts = (fact for fact in self._facts if fact.kind in kinds)
        return list(dict.fromkeys(SourceLine(self._name(one.file), one.line) for one in facts))

    def through(self, at: SourceLine) -> str | None:
        """The library through which a line acts; None: torch."""
        for fact in self._facts:
            if fact.through and fact.line == at.line and self._name(fact.file) == at.file:
                return fact.through
        return None

    def beginnings(self) -> list[str]:
        """Files in which the program may start, likeliest first."""
        program = str(self._seen["program"])
        if program.startswith("-m "):
            path = program.removeprefix("-m ").replace(".", "/")
            first = [f"{path}.py", f"{path}/__main__.py"]
        else:
            first = [self._name(program)]
        called = [site.file for site in self.sites("forward", "evaluation")]
        return [name for name in dict.fromkeys([*first, *called]) if (self._cwd / name).is_file()]

    def _name(self, file: str) -> str:
        """The file relative to the working directory."""
        return os.path.relpath(self._cwd / file, self._cwd)

    def _checked(self, name: str, must_run: bool) -> Source:
        path = self._cwd / name
        if not self._is_users(name):
            raise PatchError(f"{name} is not a file of this project")
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
        ran = self._ran.get(name, {})
        if must_run and not ran:
            raise PatchError(f"no line of {name} was seen running")
        count = source.text.count("\n") + 1
        same = all(n <= count and masked_source(source.line(n)) == line for n, line in ran.items())
        started = datetime.fromisoformat(self._seen["started"]).timestamp()
        if not same or changed > started + _CLOCK_S:
            raise PatchError(f"{name} was changed since it ran")
        return source

    def _is_users(self, name: str) -> bool:
        path = self._cwd / name
        parts = Path(name).parts
        return (
            path.is_file()
            and path.resolve().is_relative_to(self._cwd)
            and is_program(str(path))
            and not any(part.startswith(".") or part in _NOT_THE_USERS for part in parts)
            and not any((up / "pyvenv.cfg").exists() for up in path.parents if up != self._cwd)
        )


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
    """A place the user must edit, and why."""

    place: str
    why: str


FoundEdits = Iterator[PatchPart | LeftToUser]


class EditedFix(Protocol):
    """The methods of a fix used here."""

    name: str
    edited_by_call: bool

    def edit(self, value: Any, line: str) -> SourceEdit: ...

    def patch(self, value: Any, applied: Sequence[Applied], files: SourceFiles) -> FoundEdits: ...

    def trainer_setting(self, value: Any, device: str | None = None) -> dict[str, str]: ...


def locate_edits(
    fix: EditedFix, value: Any, applied: Sequence[Applied], files: SourceFiles
) -> list[PatchPart | LeftToUser]:
    """The parts that write a fix into the source; none if it can only be described. Older runs
    record no place, so the edit is left to the user with a note."""
    setting = _setting(fix, value, applied, files)
    if isinstance(setting, PatchPart):
        return [setting]
    found = list(fix.patch(value, applied, files))
    unplaced = any(one.target == OTHER_TARGET and one.place is None for one in applied)
    if unplaced and not found and not fix.edited_by_call:
        return [LeftToUser("the program", "where it took effect was not recorded")]
    written = any(isinstance(one, PatchPart) for one in found)
    return found if setting is None or written else [setting]


def _setting(
    fix: EditedFix, value: Any, applied: Sequence[Applied], files: SourceFiles
) -> PatchPart | LeftToUser | None:
    """The setting of the trainer under which a fix took effect; None without a trainer or such a
    setting."""
    cast = next((one for one in applied if one.dtype), None)
    values = fix.trainer_setting(cast.dtype if cast else value, cast.device if cast else None)
    for at in (files.sites("forward") if cast else places(applied)) if values else ():
        if files.through(at) not in TRAINER_LIBRARIES:
            continue
        try:
            found = calls.trainer_setting(files.source(at.file), values)
        except PatchError as problem:
            return LeftToUser(str(at), str(problem))
        words = f"pass {calls.settings_text(values)} to {calls.callee(found.call)}"
        return PatchPart(fix.name, at.file, found.call.lineno, words, arguments=(found,))
    return None


def by_arguments(
    fix: EditedFix, value: Any, applied: Sequence[Applied], files: SourceFiles
) -> FoundEdits:
    """Arguments of the calls on the lines where a fix took effect."""
    for at in places(applied):
        try:
            source = files.source(at.file)
            statement = source.statement(at.line)
            if statement is None:
                raise PatchError("no statement begins there")
            edit = fix.edit(value, calls.head_line(source, statement))
            found = calls.changed_arguments(statement, edit)
            if not found:
                raise PatchError("the call is not written there")
            alike = [one.call for one in found]
            if calls.callee(found[0].call) in ("to", "cuda"):
                alike = _moves(source, statement, found[0].call)
            elif len(found) == 1:  # loaders made in one statement, as in a tuple
                alike = calls.loaders_beside(source, statement, found[0].call)
            found = [CallArguments(call, found[0].values) for call in alike]
            yield PatchPart(fix.name, at.file, at.line, edit.words, arguments=tuple(found))
        except PatchError as problem:
            yield LeftToUser(str(at), str(problem))


def _moves(source: Source, statement: ast.stmt, move: ast.Call) -> list[ast.Call]:
    """A move to the device, others in the same statement, as in a tuple, and in adjacent ones:
    inputs and targets move in turn."""

    def described(call: ast.Call) -> list[str]:
        return [calls.callee(call), *map(ast.dump, (*call.args, *call.keywords))]

    every = calls.calls_in(statement_head(statement))
    moves = [call for call in every if calls.callee(call) == calls.callee(move)]
    body = getattr(source.parents[statement], "body", [])
    at = body.index(statement) if statement in body else 0
    for beside in (reversed(body[:at]), body[at + 1 :]):
        for other in beside:
            call = other.value if isinstance(other, ast.Assign) else None
            if not isinstance(call, ast.Call) or described(call) != described(move):
                break
            moves.append(call)
    return moves


def at_the_top(
    fix: EditedFix,
    value: Any,
    applied: Sequence[Applied],
    files: SourceFiles,
    before_torch: bool = False,
) -> FoundEdits:
    """Switches of torch, in the file where the program starts."""
    own = next((one.overrides for one in applied if one.overrides), None)
    if own is not None:
        yield LeftToUser(own.file, "the program sets it differently itself")
        return
    edit = fix.edit(value, "")
    write = before_imports if before_torch else after_imports
    left = LeftToUser("the program", "its first file was not found")
    for name in files.beginnings():
        try:
            changes = tuple(write(files.source(name), edit.before))
        except PatchError as problem:
            left = LeftToUser(name, str(problem))
            continue
        yield PatchPart(fix.name, name, 1, edit.words, changes=changes)
        return
    yield left


def by_call(
    fixes: Sequence[str], applied: Iterable[Applied], files: SourceFiles
) -> tuple[str, tuple[Change, ...]]:
    """A call of `stepscope.apply` where the program starts, for fixes as `--fix` takes them: the
    file and its changes. Raises PatchError."""
    call = apply_call(fixes)
    problem = PatchError("the program's first file was not found")
    for name in files.beginnings():
        early = False
        for at in places([*applied]):
            try:
                lines = files.source(at.file, ran=False)
                early = early or (at.file != name and is_run_by_import(lines, at.line))
            except PatchError:
                continue
        try:
            return name, tuple(applied_at_top(files.source(name, ran=False), call, early))
        except PatchError as refused:
            problem = refused
    raise problem


def after_the_model(
    fix: EditedFix,
    words: str,
    statement: str,
    applied: Sequence[Applied],
    files: SourceFiles,
    order: int = 0,
) -> FoundEdits:
    """A statement after the model is made, `{0}` in it being the model's variable."""

    def make(kind: str, source: Source, line: int) -> list[Change]:
        model = model_called(source, line, kind)
        written = statement.format(model.inside)
        needed = imports_torch(source) if "torch." in statement else []
        return [*needed, source.after(model.made, (written,), order=order)]

    for kind, at in dict.fromkeys((one.object or "", one.place) for one in applied):
        if at is not None:
            yield from rewritten(fix, words, [at], files, partial(make, kind))


def rewritten(
    fix: EditedFix,
    words: str,
    places: Iterable[SourceLine],
    files: SourceFiles,
    write: Callable[[Source, int], list[Change]],
) -> FoundEdits:
    """The statements on these lines, rewritten."""
    for at in places:
        try:
            changes = tuple(write(files.source(at.file), at.line))
        except PatchError as problem:
            yield LeftToUser(str(at), str(problem))
        else:
            yield PatchPart(fix.name, at.file, at.line, words, changes=changes)


def places(applied: Sequence[Applied]) -> list[SourceLine]:
    return list(dict.fromkeys(one.place for one in applied if one.place))
