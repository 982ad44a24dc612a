"""Keyword arguments put into calls as they stand in the source, those of Hugging Face's trainer
settings included.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.fixes.edit.source import Change, PatchError, Source, statement_head
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
    for text in (edit.line.strip(), f"{edit.line.strip()} pass"):
        try:
            changed = ast.parse(text).body[0]
        except (SyntaxError, IndexError):
            continue
        pairs = zip(calls_in(statement_head(statement)), calls_in(changed), strict=False)
        found = [CallArguments(now, _different(now, then)) for now, then in pairs]
        return [one for one in found if one.values]
    return []


def calls_in(node: ast.AST) -> list[ast.Call]:
    """Every call in a piece of the tree."""
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


def callee(call: ast.Call) -> str:
    """The last part of what is called."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def argument_changes(source: Source, wanted: Iterable[CallArguments]) -> list[Change]:
    """All arguments wanted, of each call together."""
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
    """Whether arguments only mean something with workers."""
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
    """Settings as one would say them."""
    return " and ".join(f"{name}={value}" for name, value in settings.items())
