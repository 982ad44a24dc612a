"""The source lines that construct a dataset's transforms, read from the program's own files."""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from stepscope.probe.sites import is_users

_MAX_BYTES = 300_000  # a larger file is not a training program
_MAX_FILES = 50

Place = tuple[str, int]


def is_users_file(file: str) -> bool:
    """Whether a file is the user's own: not of a library, not of stepscope."""
    return is_users(compile("", file, "exec"))


def constructed(names: list[str], files: Iterable[str]) -> list[Place | None]:
    """For each class name in this order the one line that constructs it; None if not certain.

    Certain is the only list or call that constructs just these in this order, then the only one
    that constructs these among others, then a class that is constructed in one place only.
    """
    calls: dict[str, set[Place]] = {name: set() for name in names}
    just: list[list[Place]] = []
    among: list[list[Place]] = []
    for file, tree in _trees(set(names), files):
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := _callee(node)) in calls:
                calls[name].add((file, node.lineno))
            built = [n for n in _elements(node) if _callee(n)]
            inner = [n for n in built if _callee(n) in calls]
            if [_callee(n) for n in inner] == names:
                rows = just if len(built) == len(inner) else among
                rows.append([(file, n.lineno) for n in inner])
    for rows in (just, among):
        if len(rows) == 1:
            return list(rows[0])
    return [next(iter(calls[n])) if len(calls[n]) == 1 else None for n in names]


def _trees(names: set[str], files: Iterable[str]) -> Iterator[tuple[str, ast.AST]]:
    loaded = [m for m in list(sys.modules.values()) if isinstance(m, ModuleType)]
    modules = [vars(module).get("__file__") for module in loaded]
    mine = dict.fromkeys(f for f in (*files, *modules) if isinstance(f, str) and is_users_file(f))
    paths = {Path(file).resolve(): file for file in mine}
    for path, file in list(paths.items())[:_MAX_FILES]:
        try:
            if path.suffix == ".py" and path.stat().st_size <= _MAX_BYTES:
                text = path.read_text(encoding="utf-8")
                if any(name in text for name in names):
                    yield file, ast.parse(text)
        except (OSError, SyntaxError, ValueError):
            continue


def _elements(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    return node.args if isinstance(node, ast.Call) else []


def _callee(node: ast.AST) -> str:
    """The last name of what a call calls, empty for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""
