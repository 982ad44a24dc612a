"""Adds keyword arguments to calls in the source, including Hugging Face trainer settings."""

import ast
import copy
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stepscope.fixes.edit.source import Change, PatchError, Source, apply_changes, statement_head
from stepscope.record.fix import SourceEdit

TRAINER_LIBRARIES = ("transformers", "trl", "sentence_transformers")
"""Packages with a trainer that takes settings."""


@dataclass(frozen=True, slots=True)
class CallArguments:
    """Keyword arguments for a call."""

    call: ast.Call
    values: dict[str, str]


def head_line(source: Source, statement: ast.stmt) -> str:
    """A statement's head on one line, as fixes are asked about it: what stands for a DataLoader in
    the file is called DataLoader."""
    head = statement_head(statement)
    names = [resolved_callee(source, call) for call in calls_in(head)]
    head = copy.deepcopy(head)
    for call, name in zip(calls_in(head), names, strict=True):
        called = _bound(call.func) or call.func
        if isinstance(called, ast.Attribute):
            called.attr = name
        elif isinstance(called, ast.Name):
            called.id = name
    return ast.unparse(ast.fix_missing_locations(head)).split("\n")[0]


def loaders_beside(source: Source, statement: ast.stmt, call: ast.Call) -> list[ast.Call]:
    """A call, and where it makes a loader those in its statement that make others."""
    if resolved_callee(source, call) != _LOADER:
        return [call]
    every = calls_in(statement_head(statement))
    return [one for one in every if resolved_callee(source, one) == _LOADER]


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
    where the line is not a statement of its own or does not call that."""
    source = _read_line(line)
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
        except (SyntaxError, ValueError):  # null bytes and half characters are no code either
            continue
    return None


def calls_in(node: ast.AST) -> list[ast.Call]:
    return [part for part in ast.walk(node) if isinstance(part, ast.Call)]


def callee(call: ast.Call) -> str:
    """The last part of the called name, that of `f` in `partial(f)(x)`."""
    func = _bound(call.func) or call.func
    return func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")


def _bound(node: ast.expr) -> ast.expr | None:
    """What a `partial` calls; None for others."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("partial") and node.args:
        return node.args[0]
    return None


_LOADER = "DataLoader"
_POSITIONS: Mapping[str, Sequence[str]] = {
    _LOADER: (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler"),
        *("num_workers", "collate_fn", "pin_memory", "drop_last"),
    ),
    "cuda": ("device", "non_blocking"),
}
"""The names of arguments that may be passed by position."""


def resolved_callee(source: Source, call: ast.Call) -> str:
    """What a call calls, by its own name: DataLoader where the name in the file is another one for
    it, as of an import, an assignment, a `partial`, a subclass, or `super().__init__` in one."""
    names = _loader_names(source)
    called = _bound(call.func) or call.func
    name = f".{callee(call)}" if isinstance(called, ast.Attribute) else callee(call)
    if names.get(name, False) or (name in names and not call.args):
        return _LOADER
    if not isinstance(called, ast.Attribute):
        return callee(call)
    made: ast.AST | None = call if ast.unparse(call.func) == "super().__init__" else None
    while made is not None and not isinstance(made, ast.ClassDef):
        made = source.parents.get(made)
    return _LOADER if made and made.name in names else callee(call)


def _loader_names(source: Source) -> dict[str, bool]:
    """Names in a file that stand for DataLoader, those of attributes with a dot before them, and
    whether they take the same arguments by position."""
    names, known = {_LOADER: True, f".{_LOADER}": True}, 0
    while len(names) > known:
        known = len(names)
        for node in ast.walk(source.tree):
            match node:
                case ast.ImportFrom(names=imported):
                    made = (one.asname or one.name for one in imported if one.name == _LOADER)
                    names |= dict.fromkeys(made, True)
                case ast.ClassDef(name=name, bases=bases):
                    if any(_stands_for(base, names) is not None for base in bases):
                        names.setdefault(name, True)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    if (same := _stands_for(value, names)) is not None:
                        names.setdefault(name, same)
                case ast.Assign(targets=[ast.Attribute(attr=name)], value=value):
                    if (same := _stands_for(value, names)) is not None:
                        names.setdefault(f".{name}", same)
    return names


def _stands_for(node: ast.expr, names: Mapping[str, bool]) -> bool | None:
    """Whether what stands for DataLoader takes the same arguments by position; None for others."""
    match node:
        case ast.Name(id=name):
            return names.get(name)
        case ast.Attribute(attr=name):
            return names.get(f".{name}")
        case ast.IfExp(body=body, orelse=orelse):
            found = [_stands_for(body, names), _stands_for(orelse, names)]
            return None if found == [None, None] else False not in found
        case ast.Call(args=args) if (bound := _bound(node)) is not None:
            same = _stands_for(bound, names)
            return None if same is None else same and len(args) == 1
    return None


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
"""Arguments that a loader rejects without workers."""


def needs_workers(wanted: CallArguments) -> bool:
    return not wanted.values.keys().isdisjoint(_KEPT_WORKERS)


def check_workers(wanted: Iterable[CallArguments]) -> None:
    """Raises PatchError if arguments need workers and there are none."""
    for call, values in _by_call(wanted).items():
        names = {*values, *_given(call), *(keyword.arg for keyword in call.keywords)}
        for kept, workers in _KEPT_WORKERS.items():
            if kept in values and not names & {workers, None}:
                raise PatchError(f"no {workers} is written there")


def _given(call: ast.Call, positions: Iterable[str] = ()) -> dict[str, ast.expr]:
    """The arguments of a call by name, as far as they are written there."""
    given: dict[str, ast.expr] = {}
    for name, value in zip(positions, call.args, strict=False):
        if isinstance(value, ast.Starred):
            break
        given[name] = value
    for keyword in call.keywords:
        if keyword.arg is not None:
            given[keyword.arg] = keyword.value
        elif isinstance(keyword.value, ast.Dict):
            pairs = zip(keyword.value.keys, keyword.value.values, strict=True)
            given |= {str(k.value): v for k, v in pairs if isinstance(k, ast.Constant)}
    return given


def _different(now: ast.Call, then: ast.Call) -> dict[str, str]:
    positions = _POSITIONS.get(callee(then), ())
    given = {name: ast.unparse(value) for name, value in _given(now, positions).items()}
    wanted = {name: ast.unparse(value) for name, value in _given(then, positions).items()}
    return {name: value for name, value in wanted.items() if given.get(name) != value}


def _set(source: Source, call: ast.Call, values: dict[str, str]) -> list[Change]:
    given = _given(call, _POSITIONS.get(resolved_callee(source, call), ()))
    spread = [keyword for keyword in call.keywords if keyword.arg is None]
    if len(spread) > 1:  # they become one dictionary, in which what comes last counts
        inside = {id(part) for keyword in spread for part in ast.walk(keyword.value)}
        given = {name: value for name, value in given.items() if id(value) not in inside}
    replaced = [
        Change(source.start(given[name]), source.end(given[name]), value)
        for name, value in values.items()
        if name in given
    ]
    new = {name: value for name, value in values.items() if name not in given}
    if not new:
        return replaced
    if spread:  # the dictionary may name them too: what comes later in it counts
        return [*replaced, *_merged(source, spread, new)]
    return [*replaced, *_added(source, call, [f"{name}={value}" for name, value in new.items()])]


def _merged(source: Source, spread: list[ast.keyword], new: dict[str, str]) -> list[Change]:
    """New arguments behind those that a call gets from dictionaries, which become one."""
    first, *others = [keyword.value for keyword in spread]
    start, end = source.start(first), source.end(first)
    text = "".join(f", **{ast.unparse(other)}" for other in others)
    text += "".join(f', "{name}": {value}' for name, value in new.items())
    dropped = []
    for keyword in spread[1:]:
        _, comma, _ = source.code_before(source.start(keyword), end)
        dropped.append(Change(comma - 1, source.end(keyword), ""))
    if not isinstance(first, ast.Dict):
        return [Change(start, start, "{**"), Change(end, end, f"{text}}}"), *dropped]
    token, at, _ = source.code_before(end - 1, start)
    text = text.removeprefix("," if token == "," else ", " if token == "{" else "")
    return [Change(at, at, text), *dropped]


def _added(source: Source, call: ast.Call, new: list[str]) -> list[Change]:
    """New arguments after the others, each on its own line if those are."""
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
    """Values for the only call that makes the settings. Raises PatchError."""
    made = [call for call in calls_in(source.tree) if _SETTINGS.fullmatch(callee(call))]
    if len(made) == 1 and all(keyword.arg for keyword in made[0].keywords):
        return CallArguments(made[0], wanted)
    where = "several times" if len(made) > 1 else "from arguments, or in another file"
    text = settings_text(wanted)
    raise PatchError(f"set {text} in the trainer's settings, which are made {where}")


def settings_text(settings: dict[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in settings.items())
