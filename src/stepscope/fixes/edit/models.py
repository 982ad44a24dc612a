"""Finds a model's variable and the statement that makes it."""

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.fixes.edit.calls import callee, calls_in
from stepscope.fixes.edit.source import PatchError, Source, statement_head
from stepscope.record.kinds import MODEL_WRAPPERS, ModelWrapper

_DEEPEST = 4  # functions a model is passed through
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ModelVariable:
    """A model's name, and the last statement that makes it before it is used."""

    name: str
    made: ast.stmt

    inside: str
    """The model itself where the statement wraps it too."""


def model_called(source: Source, line: int, kind: str) -> ModelVariable:
    """The model of class `kind` that a line calls. Raises PatchError if it is ambiguous."""
    statement = source.statement(line)
    if statement is None:
        raise PatchError("nothing is called there")
    found: dict[str, ModelVariable] = {}
    for call in calls_in(statement_head(statement)):
        if isinstance(call.func, ast.Name | ast.Attribute):
            name = ast.unparse(call.func)
            made = _made(source, name, statement, _DEEPEST)
            if made is not None:
                found[name] = _unwrapped(source, made)
    by_class = [model for model in found.values() if _makes(model.made, kind)]
    trained = [
        one
        for name, one in found.items()
        if any(f"{variable}.parameters(" in source.text for variable in (name, one.name))
    ]
    for models in (by_class, trained, list(found.values())):
        if len(models) == 1:
            return models[0]
    raise PatchError("it is not clear which variable the model is")


def _made(source: Source, name: str, used: ast.stmt, depth: int) -> ModelVariable | None:
    """Where the value of a name in a statement was made."""
    scope = source.scope(used)
    if name.startswith("self.") and name.count(".") == 1:
        while not isinstance(scope, ast.ClassDef | ast.Module):
            scope = source.scope(scope)
        return _last(name, ast.walk(scope))
    if not name.isidentifier():
        return None
    while True:
        own = (part for part in ast.walk(scope) if part is not scope)
        here = (part for part in own if source.scope(part) is scope)  # not in functions inside
        made = _last(name, here, used if scope is source.scope(used) else None)
        if made is not None:
            return made
        if isinstance(scope, _Function):
            given = scope.args
            if name in {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)}:
                return _handed(source, scope, name, depth)
        if isinstance(scope, ast.Module):
            return None
        scope = source.scope(scope)


def _handed(source: Source, function: _Function, name: str, depth: int) -> ModelVariable | None:
    """The variable that a function's callers pass as its parameter."""
    if not depth:
        return None
    names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
    if isinstance(source.scope(function), ast.ClassDef):
        names = names[1:]
    place = names.index(name) if name in names else None
    for call in calls_in(source.tree):
        if callee(call) != function.name:
            continue
        given = next((one.value for one in call.keywords if one.arg == name), None)
        if given is None and place is not None and place < len(call.args):
            given = call.args[place]
        if given is not None:
            statement: ast.AST = call
            while not isinstance(statement, ast.stmt):
                statement = source.parents[statement]
            made = _made(source, ast.unparse(given), statement, depth - 1)
            if made is not None:
                return made
    return None


def _last(
    name: str, nodes: Iterable[ast.AST], used: ast.stmt | None = None
) -> ModelVariable | None:
    """The last assignment to a name; with `used`, the last one before that statement."""
    found: list[ast.stmt] = []
    for node in nodes:
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value:
            targets = [node.target]
        else:
            continue
        flat = [part for one in targets for part in getattr(one, "elts", [one])]
        if name in map(ast.unparse, flat) and (used is None or node.lineno < used.lineno):
            found.append(node)
    made = max(found, key=lambda node: node.lineno, default=None)
    return None if made is None else ModelVariable(name, made, name)


def _unwrapped(source: Source, model: ModelVariable) -> ModelVariable:
    """The variable that a wrapper was given the model in, and where that was made; else that of
    the wrapper. What changes a model belongs before what is built on its parameters."""
    call, place = getattr(model.made, "value", None), 0
    target = model.made.targets[0] if isinstance(model.made, ast.Assign) else None
    if isinstance(target, ast.Tuple):  # as of fabric.setup, which returns what it is given
        place = [ast.unparse(one) for one in target.elts].index(model.name)
    wrapper = _wrapper(source, call) if isinstance(call, ast.Call) else None
    if wrapper is None or not isinstance(call, ast.Call) or place >= len(call.args):
        return model
    given = call.args[place]
    while isinstance(given, ast.Call):
        if _wrapper(source, given) and given.args:
            given = given.args[0]
        elif isinstance(given.func, ast.Attribute):
            given = given.func.value  # model.to(device)
        else:
            break
    name = ast.unparse(given)
    if name.startswith("self."):
        inner = _last(name, ast.walk(source.scope(source.scope(model.made))), model.made)
    else:
        inner = _made(source, name, model.made, _DEEPEST)
    if inner is not None and inner.made is not model.made:
        return _unwrapped(source, inner)
    inside = wrapper.attribute if wrapper.attribute == "module" else ""
    return ModelVariable(model.name, model.made, f"{model.name}.{inside}".removesuffix("."))


def _wrapper(source: Source, call: ast.Call) -> ModelWrapper | None:
    """What a call wraps a model in."""
    name = callee(call)
    for node in ast.walk(source.tree):
        for one in node.names if isinstance(node, ast.ImportFrom) else ():
            name = one.name if one.asname == name else name
    found = next((one for one in MODEL_WRAPPERS.values() if name in one.made_by), None)
    if found is None or found.package.startswith("torch."):
        torchs = name != "compile" or ast.unparse(call.func) in ("torch.compile", "compile")
        return found if torchs else None
    return found if "Fabric(" in source.text else None


def _makes(made: ast.stmt, kind: str) -> bool:
    """Whether a statement calls a class by name, or a function named like it."""
    wanted = kind.rpartition(".")[2].lower()
    return any(wanted in callee(call).lower().replace("_", "") for call in calls_in(made))
