"""From a fix and the places where it took hold to the parts of a patch."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.fixes.base import Fix
from stepscope.fixes.compile_tools import OF_TORCH
from stepscope.fixes.trainer_settings import LIBRARIES, trainer_settings
from stepscope.tune import patch_calls, patch_trainers
from stepscope.tune.patch_amp import under_autocast
from stepscope.tune.patch_calls import Arguments
from stepscope.tune.patch_files import Files
from stepscope.tune.patch_loop import summed_late, without_synchronize
from stepscope.tune.patch_models import model_called
from stepscope.tune.patch_source import Change, PatchError, Source
from stepscope.tune.patch_top import before_imports, imports_torch, switches

_PLACE = re.compile(r"\bat (\S.*?):(\d+)(?!\d)")
_MODEL = re.compile(r"(\S+), called at (\S.*?):(\d+)(?!\d)")
_COMPILE = re.compile(r"model\.compile\(.*?\)")
_CAST = re.compile(r" in (bf16|fp16) on (\w+)")
_OWN_SETTING = re.compile(r"over the program's own|asks for")


@dataclass(frozen=True, slots=True)
class Part:
    """One edit of a patch: arguments of calls, or changes of the text."""

    fix: str
    file: str
    line: int
    words: str
    arguments: tuple[Arguments, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A place that is left to the user, and why."""

    place: str
    why: str


def located(fix: Fix, value: Any, applied: Mapping[str, Any], files: Files) -> list[Part | Left]:
    """The parts that write a fix into the source; nothing where it is only words."""
    where = [str(text) for text in applied.get("where", ())]
    find = _FINDERS.get(fix.name, _by_arguments)
    setting = _setting(fix, value, where, files)
    if isinstance(setting, Part):
        return [setting]
    found = list(find(fix, value, where, files))
    return found if setting is None or any(isinstance(one, Part) for one in found) else [setting]


def _setting(fix: Fix, value: Any, where: list[str], files: Files) -> Part | Left | None:
    """A setting of the trainer under which a fix took hold; None where there is no trainer, or it
    has no such setting."""
    cast = _CAST.search(" ".join(where))
    if cast and cast[2] == "cpu":
        return None  # the trainers take half precision on other devices only
    values = trainer_settings(fix.name, cast[1] if cast else value)
    places = files.sites("forward") if cast else _places(where)
    for name, line in places if values else ():
        if files.through(name, line) not in LIBRARIES:
            continue
        try:
            found = patch_trainers.setting(files.source(name), values)
        except PatchError as problem:
            return Left(f"{name}:{line}", str(problem))
        words = patch_trainers.told(found)
        return Part(fix.name, name, found.call.lineno, words, arguments=(found,))
    return None


Found = Iterator[Part | Left]


def _try(fix: Fix, words: str, name: str, line: int, make: Callable[[], list[Change]]) -> Found:
    try:
        yield Part(fix.name, name, line, words, changes=tuple(make()))
    except PatchError as problem:
        yield Left(f"{name}:{line}", str(problem))


def _by_arguments(fix: Fix, value: Any, where: list[str], files: Files) -> Found:
    for name, line in _places([text.partition(" (")[0] for text in where]):  # without remarks
        try:
            statement = files.source(name).statement(line)
            if statement is None:
                raise PatchError("no statement begins there")
            edit = fix.edit(value, patch_calls.one_line(statement))
            found = patch_calls.arguments(statement, edit)
            if not found:
                raise PatchError("the call is not written there")
            if patch_calls.callee(found[0].call) in ("to", "cuda"):
                found = _moves(files.source(name), statement, found[0])
            yield Part(fix.name, name, line, edit.words, arguments=tuple(found))
        except PatchError as problem:
            yield Left(f"{name}:{line}", str(problem))


def _moves(source: Source, statement: ast.stmt, found: Arguments) -> list[Arguments]:
    """The same for the moves beside one: inputs and targets go to the device in turn."""
    moves = patch_calls.same_calls(statement, found)
    body = getattr(source.parents[statement], "body", [])
    at = body.index(statement) if statement in body else 0
    for beside in (reversed(body[:at]), body[at + 1 :]):
        for other in beside:
            call = other.value if isinstance(other, ast.Assign) else None
            if not isinstance(call, ast.Call) or not _alike(call, found.call):
                break
            moves.append(Arguments(call, found.values))
    return moves


def _alike(one: ast.Call, other: ast.Call) -> bool:
    return patch_calls.callee(one) == patch_calls.callee(other) and [
        ast.dump(part) for part in (*one.args, *one.keywords)
    ] == [ast.dump(part) for part in (*other.args, *other.keywords)]


def _at_the_top(fix: Fix, value: Any, where: list[str], files: Files) -> Found:
    """Switches of torch, in the file where the program begins."""
    own = [name for name, _ in _places([text for text in where if _OWN_SETTING.search(text)])]
    if own:
        yield Left(own[0], "the program sets it otherwise itself")
        return
    edit = fix.edit(value, "")
    write = before_imports if fix.name == "expandable_segments" else switches
    why = Left("the program", "its first file was not found")
    for name in files.beginnings():
        try:
            changes = tuple(write(files.source(name), edit.before))
        except PatchError as problem:
            why = Left(name, str(problem))
            continue
        yield Part(fix.name, name, 1, edit.words, changes=changes)
        return
    yield why


def _at_the_model(fix: Fix, value: Any, where: list[str], files: Files) -> Found:
    edit = fix.edit(value, "")
    compiles = _COMPILE.search(edit.words)
    lines = edit.before or ((compiles[0],) if compiles else ())
    of_torch = [text for text in where if compiles and OF_TORCH in text]
    for _, name, line in _models(of_torch):
        yield Left(f"{name}:{line}", f"{OF_TORCH}, which needs model = torch.compile(model, …)")
    where = [text for text in where if text not in of_torch]
    for kind, name, line in dict.fromkeys(_models(where)):

        def make(kind: str = kind, name: str = name, line: int = line) -> list[Change]:
            source = files.source(name)
            model = model_called(source, line, kind)
            written = [re.sub(r"\bmodel\b", lambda _: model.name, text) for text in lines]
            needed = imports_torch(source) if "torch." in "".join(lines) else []
            return [*needed, source.after(model.made, written, order=0 if edit.before else 1)]

        yield from _try(fix, edit.words, name, line, make)


def _autocast(fix: Fix, value: Any, where: list[str], files: Files) -> Found:
    cast = next((found for text in where if (found := _CAST.search(text))), None)
    if cast is None or cast[1] != "bf16":
        return  # float16 takes a loss scale too
    edit = fix.edit("bf16", "")
    context = edit.before[0].replace('"cuda"', f'"{cast[2]}"')
    for name, line in files.sites("forward", "evaluation"):

        def make(name: str = name, line: int = line) -> list[Change]:
            return under_autocast(files.source(name), line, context)

        yield from _try(fix, edit.words, name, line, make)


def _in_the_loop(fix: Fix, value: Any, where: list[str], files: Files) -> Found:
    write = summed_late if fix.name == "lazyitem" else without_synchronize
    for name, line in _places(where):

        def make(name: str = name, line: int = line) -> list[Change]:
            return write(files.source(name), line)

        yield from _try(fix, fix.edit(value, "").words, name, line, make)


def _places(where: list[str]) -> list[tuple[str, int]]:
    return list(dict.fromkeys((p[1], int(p[2])) for text in where for p in _PLACE.finditer(text)))


def _models(where: list[str]) -> list[tuple[str, str, int]]:
    return [(p[1], p[2], int(p[3])) for text in where for p in _MODEL.finditer(text)]


def _by_hand(fix: Fix, value: Any, where: list[str], files: Files) -> Found:
    return iter(())


_FINDERS: dict[str, Callable[[Fix, Any, list[str], Files], Found]] = {
    **dict.fromkeys(("tf32", "cudnn_benchmark", "threads", "expandable_segments"), _at_the_top),
    **dict.fromkeys(("channels_last", "compile"), _at_the_model),
    **dict.fromkeys(("nosync", "lazyitem"), _in_the_loop),
    **dict.fromkeys(("affinity", "cache", "prefetch", "recycle", "cuda_graph"), _by_hand),
    **dict.fromkeys(("accumulate", "checkpointing"), _by_hand),
    "amp": _autocast,
}
"""How each fix is written; those that change a call's arguments are not listed."""
