"""The modules of a checkout and what they import, read without importing any of them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = "stepscope"
ROOT = Path(__file__).parents[2]
UNTYPED = ("dict[str, Any]", "Mapping[str, Any]", "MutableMapping[str, Any]")


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, path and syntax tree."""

    name: str
    path: Path
    tree: ast.Module
    lines: int

    @property
    def layer(self) -> str:
        """The folder below the package; the module's own name where it has none."""
        return f"{self.name}.".split(".")[1]


@dataclass(frozen=True)
class Import:
    """`from module import name`, with the module that defines the name; None: the module itself."""

    importer: str
    module: str
    name: str | None


@cache
def modules() -> dict[str, Module]:
    """All modules of the package in a checkout, by dotted name."""
    found = {}
    for path in sorted((ROOT / "src" / PACKAGE).rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found[name] = Module(name, path, ast.parse(text), len(text.splitlines()))
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Every import of one module of the package by another, those in functions included."""
    known = modules()
    return tuple(
        one
        for module in known.values()
        for node in statements(module.tree)
        for one in _imports_of(module.name, node, known)
        if one.module in known
    )


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements in a syntax tree, without looking into their expressions."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, part, ())
        for one in inner if isinstance(inner, list) else ():
            if isinstance(one, ast.stmt):
                yield one
            yield from statements(one)


def _imports_of(importer: str, node: ast.AST, known: dict[str, Module]) -> Iterator[Import]:
    if isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            whole = inner in known
            yield Import(importer, inner if whole else node.module, None if whole else alias.name)
    elif isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(importer, alias.name, None)


def cycles() -> list[list[str]]:
    """Groups of modules that import one another in a circle."""
    graph: dict[str, set[str]] = {name: set() for name in modules()}
    for one in imports():
        if one.importer != one.module and one.module != PACKAGE:
            graph[one.importer].add(one.module)
    order: list[str] = []
    seen: set[str] = set()

    def visit(name: str, edges: dict[str, set[str]], into: list[str]) -> None:
        stack = [(name, iter(edges[name]))]
        seen.add(name)
        while stack:
            here, left = stack[-1]
            for other in left:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(edges[other])))
                    break
            else:
                stack.pop()
                into.append(here)

    for name in graph:
        if name not in seen:
            visit(name, graph, order)
    backwards: dict[str, set[str]] = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            backwards[other].add(name)
    seen.clear()
    found = []
    for name in reversed(order):
        if name not in seen:
            group: list[str] = []
            visit(name, backwards, group)
            if len(group) > 1:
                found.append(sorted(group))
    return found


def functions(module: Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Public top-level functions, and public methods of public classes as `Class.method`."""
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            yield node.name, node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                    yield f"{node.name}.{inner.name}", inner


def untyped() -> set[str]:
    """Public functions used by another layer that take or return a dictionary of anything."""
    known = modules()
    used = {
        (one.module, one.name)
        for one in imports()
        if known[one.importer].layer != known[one.module].layer
    }
    found = set()
    for module in known.values():
        aliases = {*UNTYPED, *_aliases(module, known)}
        for name, node in functions(module):
            if (module.name, name.partition(".")[0]) in used and _mentions(node, aliases):
                found.add(f"{module.name.removeprefix('stepscope.')}:{name}")
    return found


def _aliases(module: Module, known: dict[str, Module]) -> set[str]:
    """Names that stand for such a dictionary in a module: its own, and imported ones."""
    found = _own_aliases(module)
    for node in module.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in known:
            own = _own_aliases(known[node.module])
            found |= {alias.asname or alias.name for alias in node.names if alias.name in own}
    return found


def _own_aliases(module: Module) -> set[str]:
    return {
        target.id
        for node in module.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value) in UNTYPED
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _mentions(node: ast.FunctionDef, aliases: set[str]) -> bool:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    told = [one.annotation for one in arguments if one.annotation is not None]
    told += [node.returns] if node.returns is not None else []
    return any(
        ast.unparse(part) in aliases
        for annotation in told
        for part in ast.walk(annotation)
        if isinstance(part, ast.expr)
    )
