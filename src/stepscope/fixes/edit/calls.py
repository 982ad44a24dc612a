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
        found = []
        for now, then in zip(_calls(statement_head(statement)), _calls(changed), strict=False):
            values = _different(now, then)
            if values:
                found.append(CallArguments(now, values))
        return found
    return []


def same_calls(statement: ast.stmt, found: CallArguments) -> list[CallArguments]:
    """The same for every call of that name in the statement, as when a tuple is moved."""
    name = callee(found.call)
    return [
        CallArguments(c, found.values)
        for c in _calls(statement_head(statement))
        if callee(c) == name
    ]


def callee(call: ast.Call) -> str:
    """The last part of what is called."""
    func = call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def argument_changes(source: Source, wanted: Iterable[CallArguments]) -> list[Change]:
    """All arguments wanted, of each call together."""
    together: dict[ast.Call, dict[str, str]] = {}
    for one in wanted:
        together.setdefault(one.call, {}).update(one.values)
    return [change for call, values in together.items() for change in _set(source, call, values)]


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
    together: dict[ast.Call, set[str]] = {}
    for one in wanted:
        together.setdefault(one.call, set()).update(one.values)
    for call, names in together.items():
        given = {keyword.arg for keyword in call.keywords}
        for kept, workers in _KEPT_WORKERS.items():
            if kept in names and not (names | given) & {workers, None}:
                raise PatchError(f"no {workers} is written there")


def _calls(statement: ast.stmt) -> list[ast.Call]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.Call)]


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
    if token == "(":
        return [Change(at, at, ", ".join(new))]
    comma = token == ","
    if source.begins(line + 1) > close:  # the bracket closes on the same line
        text = ", ".join(new)
        return [Change(at, at, f" {text}" if comma else f", {text}")]
    indent = source.indent(line)
    end_of_line = source.begins(line) + len(source.line(line))
    text = "".join(f"{source.newline}{indent}{one}," for one in new)
    text = text if comma else text.removesuffix(",")
    return [*([] if comma else [Change(at, at, ",")]), Change(end_of_line, end_of_line, text, 1)]


_SETTINGS = re.compile(r"\w*TrainingArguments|(SFT|DPO|GRPO|KTO|ORPO|RLOO|Reward)Config")


def trainer_setting(source: Source, wanted: dict[str, str]) -> CallArguments:
    """Values for the one call that makes the settings. Raises PatchError."""
    made = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and _SETTINGS.fullmatch(callee(node))
    ]
    if len(made) == 1 and all(keyword.arg for keyword in made[0].keywords):
        return CallArguments(made[0], wanted)
    where = "several times" if len(made) > 1 else "from arguments, or in another file"
    raise PatchError(
        f"set {settings_text(wanted)} in the trainer's settings, which are made {where}"
    )


def settings_text(settings: dict[str, str]) -> str:
    """Settings as one would say them."""
    return " and ".join(f"{name}={value}" for name, value in settings.items())


def setting_words(found: CallArguments) -> str:
    """What to do, in words."""
    return f"pass {settings_text(found.values)} to {callee(found.call)}"
