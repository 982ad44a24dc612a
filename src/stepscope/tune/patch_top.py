"""Lines for the beginning of a program: switches of torch, variables it reads."""

import ast

from stepscope.tune.patch_source import Change, PatchError, Source


def switches(source: Source, lines: tuple[str, ...]) -> list[Change]:
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
