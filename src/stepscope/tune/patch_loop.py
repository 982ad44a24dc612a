"""Waits taken out of a loop: synchronisations, and losses read in every step."""

import ast

from stepscope.tune.patch_source import Change, PatchError, Source

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def without_synchronize(source: Source, line: int) -> list[Change]:
    """The statement on a line deleted. Raises PatchError where it is more than that call."""
    node = source.statement(line)
    call = node.value if isinstance(node, ast.Expr) else None
    if (
        node is None
        or not isinstance(call, ast.Call)
        or not ast.unparse(call.func).endswith("synchronize")
        or not source.stands_alone(node)
    ):
        raise PatchError("the call is not a statement of its own")
    siblings = next(
        body
        for _, body in ast.iter_fields(source.parents[node])
        if isinstance(body, list) and node in body
    )
    if len(siblings) == 1:
        return [Change(source.start(node), source.end(node), "pass")]
    begin, end = node.lineno, (node.end_lineno or node.lineno) + 1
    return [Change(source.begins(begin), source.begins(end), "")]


def summed_late(source: Source, line: int) -> list[Change]:
    """`total += loss.item()` adds up the tensor instead, and reads it after the loop.

    Raises PatchError where the sum is used otherwise in the loop.
    """
    node = source.statement(line)
    calls = _items(node) if node is not None else []
    if (
        not isinstance(node, ast.AugAssign)
        or not isinstance(node.target, ast.Name)
        or not isinstance(node.op, ast.Add | ast.Sub)
        or len(calls) != 1
    ):
        raise PatchError("it is not simply added to a variable")
    name = node.target.id
    loop = _loop(source, node)
    if loop is None or _needed_in(loop, node, name):
        raise PatchError(f"{name} is needed before the loop ends")
    call, of = calls[0]
    begin = source.end(of)
    attribute = source.text[begin : source.end(call)]
    if attribute.count("(") != 1 or "#" in attribute:
        raise PatchError("the call goes on over lines")
    begin += attribute.index(".")
    counts = _counts(source, node, of)
    return [
        Change(begin, source.end(call), ".detach()" if counts else ".detach().double()"),
        source.after(loop, (f"{name} = {'int' if counts else 'float'}({name})",)),
    ]


def _items(node: ast.stmt) -> list[tuple[ast.Call, ast.expr]]:
    """The calls of `.item()` in a statement, each with what it is called of."""
    return [
        (part, part.func.value)
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr == "item"
    ]


def _counts(source: Source, node: ast.stmt, of: ast.expr) -> bool:
    """Whether what is summed is a number of cases, as of right answers: a whole number."""
    parts = [*ast.walk(of)]
    if isinstance(of, ast.Name):
        for other in ast.walk(source.scope(node)):
            if isinstance(other, ast.Assign) and ast.unparse(other.targets[0]) == of.id:
                parts += ast.walk(other.value)
    names = {part.attr for part in parts if isinstance(part, ast.Attribute)}
    compared = any(isinstance(part, ast.Compare) for part in parts) or bool(names & {"eq", "ne"})
    return compared and not names & {"float", "double", "mean", "half", "bfloat16"}


def _loop(source: Source, node: ast.AST) -> ast.stmt | None:
    """The innermost loop around a statement, in the same function."""
    while node in source.parents:
        node = source.parents[node]
        if isinstance(node, ast.For | ast.While | ast.AsyncFor):
            return node
        if isinstance(node, _Function):
            return None
    return None


def _needed_in(loop: ast.stmt, node: ast.AugAssign, name: str) -> bool:
    """Whether a loop reads a sum it makes, or can be left other than at its end."""
    for part in ast.walk(loop):
        if isinstance(part, ast.Name) and part.id == name and part is not node.target:
            return True
        if isinstance(part, ast.Return | ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal):
            return True
    return False
