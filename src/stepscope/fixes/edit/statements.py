"""Edits of whole statements: autocast around a model's call, waits taken out of a loop, switches at
the top of a file.
"""

import ast

from stepscope.fixes.edit.source import Change, PatchError, Source


def after_imports(source: Source, lines: tuple[str, ...]) -> list[Change]:
    """Lines put behind the imports. Raises PatchError where torch is not imported there."""
    last = _last_import(source)
    if last is None:
        raise PatchError("torch is not imported at the beginning")
    gap = source.after(last, ("",), order=1)
    return [*imports_torch(source), gap, source.after(last, lines, order=2)]


def before_imports(source: Source, lines: tuple[str, ...]) -> list[Change]:
    """Lines put before the first import."""
    for node in source.tree.body:
        future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if future or _is_docstring(node):
            continue
        at = source.begins(min([node.lineno, *_decorated(node)]))
        return [Change(at, at, "".join(f"{line}{source.newline}" for line in lines))]
    raise PatchError("the file is empty")


def imports_torch(source: Source) -> list[Change]:
    """What it takes for `torch` to be a name in the file. Raises PatchError."""
    if binds_torch(source):
        return []
    last = _last_import(source)
    if last is None:
        raise PatchError("torch is not imported at the beginning")
    return [source.after(last, ("import torch",))]


def binds_torch(source: Source) -> bool:
    """Whether `torch` is a name from the beginning on."""
    return any(
        isinstance(node, ast.Import)
        and any(
            alias.asname == "torch"
            or (alias.asname is None and alias.name.partition(".")[0] == "torch")
            for alias in node.names
        )
        for node in source.tree.body
    )


def _last_import(source: Source) -> ast.stmt | None:
    """The last of the imports a file begins with; torch's own, where that comes later."""
    last = torchs = None
    leading = True
    for node in source.tree.body:
        imports = isinstance(node, ast.Import | ast.ImportFrom)
        if imports and (leading or (torchs is None and _of_torch(node))):
            last = node
        leading = leading and (imports or _is_docstring(node) or _only_imports(node))
        if imports and _of_torch(node):
            torchs = torchs or node
    return last if torchs is not None else None


def _of_torch(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").partition(".")[0] == "torch"
    return isinstance(node, ast.Import) and any(
        alias.name.partition(".")[0] == "torch" for alias in node.names
    )


def _only_imports(node: ast.stmt) -> bool:
    """A block such as `try: import x` with a fallback."""
    return isinstance(node, ast.Try | ast.If) and all(
        isinstance(part, ast.Import | ast.ImportFrom) for part in node.body
    )


def _is_docstring(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _decorated(node: ast.stmt) -> list[int]:
    return [one.lineno for one in getattr(node, "decorator_list", ())]


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
