"""Edits of whole statements: autocast around a model's call, waits taken out of a loop, switches at
the top of a file."""

import ast
import json
from collections.abc import Sequence
from typing import TypeGuard

from stepscope.fixes.edit.source import Change, PatchError, Source, deeper


def after_imports(source: Source, lines: tuple[str, ...]) -> list[Change]:
    """Lines put behind the imports. Raises PatchError where torch is not imported there."""
    last = _last_import(source)
    gap = source.after(last, ("",), order=1)
    return [*imports_torch(source), gap, source.after(last, lines, order=2)]


def apply_call(fixes: Sequence[str]) -> str:
    """The statement that applies fixes, given as `--fix` takes them."""
    return f"stepscope.apply({', '.join(map(json.dumps, fixes))})"


def applied_at_top(source: Source, call: str, early: bool) -> list[Change]:
    """A call of stepscope behind the imports a file begins with, or before them: where something
    imported is what it acts on, or other code stands beside them. Raises PatchError."""
    leading = _leading_imports(source)
    if leading and not early and source.stands_alone(leading[-1]):
        last = leading[-1]
        gap = source.after(last, ("",), order=1)
        imported = source.after(last, ("import stepscope",))
        return [imported, gap, source.after(last, (call,), order=3)]
    return before_imports(source, ("import stepscope", "", call))


def before_imports(source: Source, lines: tuple[str, ...]) -> list[Change]:
    for node in source.tree.body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if future or _is_docstring(node):
            continue
        decorators = [one.lineno for one in getattr(node, "decorator_list", ())]
        at = source.begins(min([node.lineno, *decorators]))
        return [Change(at, at, "".join(f"{line}{source.newline}" for line in lines))]
    raise PatchError("the file is empty")


def imports_torch(source: Source) -> list[Change]:
    """What it takes for `torch` to be a name in the file. Raises PatchError."""
    imports = (node for node in source.tree.body if isinstance(node, ast.Import))
    names = [
        alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names
    ]
    if "torch" in names:
        return []
    return [source.after(_last_import(source), ("import torch",))]


def _last_import(source: Source) -> ast.stmt:
    """The last of the imports a file begins with; torch's own, where that comes later. Raises
    PatchError where torch is not imported there."""
    first = next(filter(_imports_torch, source.tree.body), None)
    if first is None:
        raise PatchError("torch is not imported at the beginning")
    return max([first, *_leading_imports(source)], key=lambda node: node.lineno)


def _imports_torch(node: ast.stmt) -> bool:
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=module):
            modules = [module or ""]
        case _:
            return False
    return any(name.partition(".")[0] == "torch" for name in modules)


def _leading_imports(source: Source) -> list[ast.stmt]:
    """Those a file begins with."""
    found: list[ast.stmt] = []
    for node in source.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not (_is_docstring(node) or _only_imports(node)):
            break
    return found


def is_run_by_import(source: Source, line: int) -> bool:
    """Whether a line runs while the file is imported, before anything behind its own imports."""
    node = source.statement(line)
    while node is not None and not isinstance(scope := source.scope(node), ast.Module):
        node = scope if isinstance(scope, ast.ClassDef) else None
    return node is not None


def _only_imports(node: ast.stmt) -> bool:
    """A block such as `try: import x` with a fallback."""
    return isinstance(node, ast.Try | ast.If) and all(
        isinstance(part, ast.Import | ast.ImportFrom) for part in node.body
    )


def _is_docstring(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Constant(value=str())):
            return True
    return False


_FIRST, _THEN = 1, 2  # the line before a statement, then its own indentation


def under_autocast(context: str, source: Source, line: int) -> list[Change]:
    """The statement on a line, inside `context`; what it keeps in a variable is float32 again.
    Raises PatchError for what is no simple statement."""
    node = source.statement(line)
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
        raise PatchError("the model is not called in a statement of its own")
    parts = list(ast.walk(node))
    if any(isinstance(part, ast.Attribute) and part.attr in ("backward", "step") for part in parts):
        raise PatchError("backward is called in the same statement")
    if not source.stands_alone(node):
        raise PatchError("the statement cannot be indented")
    last = node.end_lineno or node.lineno
    strings = (part for part in parts if _is_long_string(part))
    inside = {n for one in strings for n in range(one.lineno + 1, (one.end_lineno or 0) + 1)}
    indent = source.indent(node.lineno)
    begin = source.begins(node.lineno)
    changes = [Change(begin, begin, f"{indent}{context}{source.newline}", _FIRST)]
    for number in range(node.lineno, last + 1):
        if source.line(number).strip() and number not in inside:
            at = source.begins(number) + len(source.indent(number))
            changes.append(Change(at, at, deeper(indent), _THEN))
    back = _made_float(source, node)
    if back is not None:
        changes.append(source.after(node, (back,)))
    return [*changes, *imports_torch(source)]


def _made_float(source: Source, node: ast.stmt) -> str | None:
    """The line that makes what a statement has assigned float32; None where nothing needs it."""
    if isinstance(node, ast.Expr | ast.AugAssign):
        return None
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    target = targets[0]
    if len(targets) > 1 or not isinstance(target, ast.Name):
        raise PatchError("the model returns several things")
    for use in ast.walk(source.scope(node)):
        if isinstance(use, ast.Name) and use.id == target.id and isinstance(use.ctx, ast.Load):
            match source.parents[use]:
                case ast.Attribute(attr="loss" | "logits" | "last_hidden_state"):
                    return None  # its loss was computed inside, under autocast
                case ast.Subscript(slice=ast.Constant(value=str())):
                    return None
    return f"{target.id} = {target.id}.float()"


def _is_long_string(node: ast.AST) -> TypeGuard[ast.JoinedStr | ast.Constant]:
    """A string that goes on over lines: indenting those would change it."""
    match node:
        case ast.JoinedStr() | ast.Constant(value=str() | bytes()):
            return (node.end_lineno or 0) > node.lineno
    return False


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
    """`total += loss.item()` adds up the tensor instead, and reads it after the loop. Raises
    PatchError where the sum is used otherwise in the loop."""
    node = source.statement(line)
    calls = []
    for part in ast.walk(node) if node else ():
        match part:
            case ast.Call(func=ast.Attribute(attr="item", value=of)):
                calls.append((part, of))
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
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
    return None


def _needed_in(loop: ast.stmt, node: ast.AugAssign, name: str) -> bool:
    """Whether a loop reads a sum it makes, or can be left other than at its end."""
    leaves = ast.Return | ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal
    return any(
        isinstance(part, leaves)
        or (isinstance(part, ast.Name) and part.id == name and part is not node.target)
        for part in ast.walk(loop)
    )
