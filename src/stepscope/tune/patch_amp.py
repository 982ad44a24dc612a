"""Autocast around the statement that calls a model."""

import ast

from stepscope.tune.patch_source import Change, PatchError, Source
from stepscope.tune.patch_top import imports_torch

_FIRST, _THEN = 1, 2  # the line before a statement, then its own indentation


def under_autocast(source: Source, line: int, context: str) -> list[Change]:
    """The statement on a line, inside `context`; what it keeps in a variable is float32 again.

    Raises PatchError for what is no simple statement.
    """
    node = source.statement(line)
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
        raise PatchError("the model is not called in a statement of its own")
    if _runs_backward(node):
        raise PatchError("backward is called in the same statement")
    if not source.stands_alone(node) or _has_long_string(node):
        raise PatchError("the statement cannot be indented")
    last = node.end_lineno or node.lineno
    indent = source.indent(node.lineno)
    begin = source.begins(node.lineno)
    changes = [Change(begin, begin, f"{indent}{context}{source.newline}", _FIRST)]
    for number in range(node.lineno, last + 1):
        if source.line(number).strip():
            at = source.begins(number)
            changes.append(Change(at, at, "    ", _THEN))
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
    uses = [
        source.parents[use]
        for use in ast.walk(source.scope(node))
        if isinstance(use, ast.Name) and use.id == target.id and isinstance(use.ctx, ast.Load)
    ]
    if any(_is_container(use) for use in uses):
        return None  # its loss was computed inside, under autocast
    return f"{target.id} = {target.id}.float()"


def _is_container(use: ast.AST) -> bool:
    """Whether a value is used as an object with a loss or logits, not as a tensor."""
    if isinstance(use, ast.Attribute):
        return use.attr in ("loss", "logits", "last_hidden_state")
    if isinstance(use, ast.Subscript):
        return isinstance(use.slice, ast.Constant) and isinstance(use.slice.value, str)
    return False


def _runs_backward(node: ast.stmt) -> bool:
    return any(
        isinstance(part, ast.Attribute) and part.attr in ("backward", "step")
        for part in ast.walk(node)
    )


def _has_long_string(node: ast.stmt) -> bool:
    """Whether a string goes on over lines: indenting would change it."""
    return any(
        isinstance(part, ast.Constant | ast.JoinedStr)
        and part.end_lineno is not None
        and part.end_lineno > part.lineno
        and (isinstance(part, ast.JoinedStr) or isinstance(part.value, str | bytes))
        for part in ast.walk(node)
    )
