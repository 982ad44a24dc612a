"""Keyword arguments put into calls as they stand in the source, those of Hugging Face's trainer
settings included."""

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from stepscope.fixes.edit.source import Change, PatchError, Source, apply_changes, statement_head
from stepscope.record.fix import SourceEdit

TRAINER_LIBRARIES = ("transformers", "trl", "sentence_transformers")
"""Packages with a trainer that takes settings."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Keyword arguments that a call is to have."""

    call: ast.Call
    values: dict[str, str]


def head_line(statement: ast.stmt) -> str:
    """A statement's head on one line, as fixes are asked about it."""
    return ast.unparse(ast.fix_missing_locations(statement_head(statement))).split("\n")[0]


def changed_arguments(statement: ast.stmt, edit: SourceEdit) -> list[CallArguments]:
    """What an edit of that one line changes in the calls of a statement."""
    if edit.line is None:
        return []
    changed = _read_line(edit.line)
    then = calls_in(changed.tree) if changed else []
    pairs = zip(calls_in(statement_head(statement)), then, strict=False)
    found = [CallArguments(now, _different(now, then)) for now, then in pairs]
    return [one for one in found if one.values]


def with_argument(line: str, callees: Collection[str], name: str, value: str) -> str | None:
    """The line with a keyword argument of the call of one of `callees` set to an expression; None
    where the line is no statement of its own in ASCII or does not call that."""
    source = _read_line(line) if line.isascii() else None
    made = [call for call in calls_in(source.tree) if callee(call) in callees] if source else []
    if not source or not made:
        return None
    indent = line[: len(line) - len(line.lstrip())]
    text = apply_changes(source.text, _set(source, made[0], {name: value}))
    return indent + text.removesuffix(_BODY)


_BODY = " pass"  # makes a statement of a line that opens a block


def _read_line(line: str) -> Source | None:
    for text in (line.strip(), line.strip() + _BODY):
        try:
            return Source(text)
        except SyntaxError:
            continue
    return None


def calls_in(node: ast.AST) -> list[ast.Call]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


def callee(call: ast.Call) -> str:
    """The last part of what is called."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def argument_changes(source: Source, wanted: Iterable[CallArguments]) -> list[Change]:
    return [
        change for call, values in _by_call(wanted).items() for change in _set(source, call, values)
    ]


def _by_call(wanted: Iterable[CallArguments]) -> dict[ast.Call, dict[str, str]]:
    together: dict[ast.Call, dict[str, str]] = {}
    for one in wanted:
        together.setdefault(one.call, {}).update(one.values)
    return together


_KEPT_WORKERS = {
    "persistent_workers": "num_workers",
    "dataloader_persistent_workers": "dataloader_num_workers",
}
"""Arguments that a loader refuses without another one."""


def needs_workers(wanted: CallArguments) -> bool:
    return not wanted.values.keys().isdisjoint(_KEPT_WORKERS)


def check_workers(wanted: Iterable[CallArguments]) -> None:
    """Raises PatchError where arguments only mean something with workers, and there are none."""
    for call, values in _by_call(wanted).items():
        names = {*values, *(keyword.arg for keyword in call.keywords)}
        for kept, workers in _KEPT_WORKERS.items():
            if kept in values and not names & {workers, None}:
                raise PatchError(f"no {workers} is written there")


def _different(now: ast.Call, then: ast.Call) -> dict[str, str]:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in now.keywords}
    wanted = {keyword.arg: ast.unparse(keyword.value) for keyword in then.keywords if keyword.arg}
    return {name: value for name, value in wanted.items() if given.get(name) != value}


def _set(source: Source, call: ast.Call, values: dict[str, str]) -> list[Change]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    replaced = [
        Change(source.start(given[name]), source.end(given[name]), value)
        for name, value in values.items()
        if name in given
    ]
    new = [f"{name}={value}" for name, value in values.items() if name not in given]
    return [*replaced, *(_added(source, call, new) if new else [])]


def _added(source: Source, call: ast.Call, new: list[str]) -> list[Change]:
    """New arguments behind the others, each on a line of its own where those are."""
    close = source.end(call) - 1
    token, at, line = source.code_before(close, source.end(call.func))
    if token == "(" or source.begins(line + 1) > close:  # the bracket closes on the same line
        before = {"(": "", ",": " "}.get(token, ", ")
        return [Change(at, at, before + ", ".join(new))]
    indent = source.indent(line)
    end_of_line = source.begins(line) + len(source.line(line))
    text = "".join(f"{source.newline}{indent}{one}," for one in new)
    if token == ",":
        return [Change(end_of_line, end_of_line, text, 1)]
    return [Change(at, at, ","), Change(end_of_line, end_of_line, text.removesuffix(","), 1)]


_SETTINGS = re.compile(r"\w*TrainingArguments|(SFT|DPO|GRPO|KTO|ORPO|RLOO|Reward)Config")


def trainer_setting(source: Source, wanted: dict[str, str]) -> CallArguments:
    """Values for the one call that makes the settings. Raises PatchError."""
    made = [call for call in calls_in(source.tree) if _SETTINGS.fullmatch(callee(call))]
    if len(made) == 1 and all(keyword.arg for keyword in made[0].keywords):
        return CallArguments(made[0], wanted)
    where = "several times" if len(made) > 1 else "from arguments, or in another file"
    text = settings_text(wanted)
    raise PatchError(f"set {text} in the trainer's settings, which are made {where}")


def settings_text(settings: dict[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in settings.items())
