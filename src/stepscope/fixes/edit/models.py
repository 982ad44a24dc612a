"""Which variable a model is called by, and the statement after which it is made."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from stepscope.fixes.edit.calls import callee
from stepscope.fixes.edit.source import PatchError, Scope, Source, statement_head

_DEEPEST = 4  # functions a model is handed through
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """A model's name, and the last statement that makes it before it is used."""

    name: str
    made: ast.stmt


def model_called(source: Source, line: int, kind: str) -> ModelVariable:
    """The model of class `kind` that a line calls. Raises PatchError where that is not clear."""
    statement = source.statement(line)
    if statement is None:
        raise PatchError("nothing is called there")
    found: dict[str, ModelVariable] = {}
    for node in ast.walk(statement_head(statement)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = ast.unparse(node.func)
            made = _made(source, name, statement, _DEEPEST)
            if made is not None:
                found[name] = made
    by_class = [model for model in found.values() if _makes(model.made, kind)]
    trained = [model for model in found.values() if _is_trained(source, model.name)]
    for models in (by_class, trained, list(found.values())):
        if len(models) == 1:
            return models[0]
    raise PatchError("it is not clear which variable the model is")


def _made(source: Source, name: str, used: ast.stmt, depth: int) -> ModelVariable | None:
    """Where what a name stands for in a statement was made."""
    scope = source.scope(used)
    if name.startswith("self.") and name.count(".") == 1:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = source.scope(scope)
        within = [node for node in ast.walk(scope) if _assigns(node, name)]
        return _last(name, within, None)
    if not name.isidentifier():
        return None
    while True:
        here = [node for node in _own(source, scope) if _assigns(node, name)]
        made = _last(name, here, used if scope is source.scope(used) else None)
        if made is not None:
            return made
        if isinstance(scope, _Function) and _takes(scope, name):
            return _handed(source, scope, name, depth)
        if isinstance(scope, ast.Module):
            return None
        scope = source.scope(scope)


def _handed(source: Source, function: _Function, name: str, depth: int) -> ModelVariable | None:
    """The variable that a function's callers hand over as its parameter."""
    if not depth:
        return None
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(source.scope(function), ast.ClassDef):
        names = names[1:]
    place = names.index(name) if name in names else None
    for call in source.statements(ast.Call):
        if not isinstance(call, ast.Call) or callee(call) != function.name:
            continue
        given = next((one.value for one in call.keywords if one.arg == name), None)
        if given is None and place is not None and place < len(call.args):
            given = call.args[place]
        if given is not None:
            made = _made(source, ast.unparse(given), _statement_of(source, call), depth - 1)
            if made is not None:
                return made
    return None


def _last(name: str, assignments: list[ast.AST], used: ast.stmt | None) -> ModelVariable | None:
    """The last assignment; with `used`, the last one before that statement."""
    found = [
        node
        for node in assignments
        if isinstance(node, ast.stmt) and (used is None or node.lineno < used.lineno)
    ]
    made = max(found, key=lambda node: node.lineno, default=None)
    return None if made is None else ModelVariable(name, made)


def _own(source: Source, scope: Scope) -> Iterator[ast.AST]:
    """The statements of a scope, not those of functions in it."""
    return (
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.stmt) and node is not scope and source.scope(node) is scope
    )


def _assigns(node: ast.AST, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets = [node.target] if isinstance(node, ast.AnnAssign) and node.value else targets
    flat = [part for one in targets for part in getattr(one, "elts", [one])]
    return any(ast.unparse(target) == name for target in flat)


def _takes(function: _Function, name: str) -> bool:
    given = function.args
    return name in {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


def _statement_of(source: Source, node: ast.AST) -> ast.stmt:
    while not isinstance(node, ast.stmt):
        node = source.parents[node]
    return node


def _makes(made: ast.stmt, kind: str) -> bool:
    """Whether a statement calls a class by name, or a function that is called like it."""
    wanted = kind.rpartition(".")[2].lower()
    calls = [node for node in ast.walk(made) if isinstance(node, ast.Call)]
    return any(wanted in callee(call).lower().replace("_", "") for call in calls)


def _is_trained(source: Source, name: str) -> bool:
    return f"{name}.parameters(" in source.text
