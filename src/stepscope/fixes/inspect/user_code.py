"""The user's own code behind a call: its frame, its line and the call expression."""

import ast
import linecache
import os
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

from stepscope.probe.sites import is_user_code
from stepscope.record.fix import SourceLine


def user_location() -> SourceLine | None:
    """The line of the nearest user frame, or None."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_code(frame.f_code):
            return SourceLine(short_path(frame.f_code.co_filename), frame.f_lineno)
        frame = frame.f_back
    return None


def raise_location(trace: TracebackType | None) -> tuple[SourceLine | None, str]:
    """The innermost user's line of a traceback, and its text."""
    where, line = None, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_user_code(code):
            where = SourceLine(short_path(code.co_filename), trace.tb_lineno)
            line = linecache.getline(code.co_filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    return where, line


def short_path(path: str) -> str:
    """A file as the user would name it: relative to the working directory, or its name alone."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return os.path.basename(path) if near.startswith("..") else near


PACKAGE_FOLDER = str(Path(__file__).parents[2])
"""The folder of stepscope itself."""
_POINTS = str(Path(PACKAGE_FOLDER) / "probe" / "points")
_TIMED = str(Path(PACKAGE_FOLDER) / "probe" / "core.py")  # what points make timed calls with


def calling_frame(own: str) -> FrameType | None:
    """The frame that made the current call, skipping seams and points. None if stepscope itself
    made it: another fix, or the observer. `own` is the calling fix's file."""
    passed = (_POINTS, _TIMED, __file__, own)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    if frame is None or is_user_code(frame.f_code):
        return frame
    return None if frame.f_code.co_filename.startswith(PACKAGE_FOLDER) else frame


def user_calling_frame(own: str) -> FrameType | None:
    """The same if it is the user's code; None if a library or another fix calls."""
    frame = calling_frame(own)
    return frame if frame is not None and is_user_code(frame.f_code) else None


class SourceTree:
    """A source file's syntax tree in which every node knows its parent."""

    def __init__(self, source: str) -> None:
        self.root = ast.parse(source)
        self._parents = {
            child: node for node in ast.walk(self.root) for child in ast.iter_child_nodes(node)
        }
        self.calls = {
            (node.end_lineno, node.end_col_offset): node
            for node in ast.walk(self.root)
            if isinstance(node, ast.Call)
        }
        """By the place of their closing bracket: no two share one."""

    def parent(self, node: ast.AST) -> ast.AST | None:
        """A node's parent; None for the whole file."""
        return self._parents.get(node)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """A node's ancestors, nearest first."""
        at = self.parent(node)
        while at is not None:
            yield at
            at = self.parent(at)


@cache
def source_tree(file: str) -> SourceTree | None:
    """A file's tree; None without readable source."""
    try:
        return SourceTree("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def call_under_way(frame: FrameType) -> tuple[ast.Call, SourceTree] | None:
    """The call expression a frame is executing; None if unknown."""
    tree = source_tree(frame.f_code.co_filename)
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    _, end_line, _, end_column = next(positions, (None, None, None, None))
    call = tree.calls.get((end_line, end_column)) if tree else None
    return (call, tree) if tree and call else None


def uses_of_name(scope: ast.AST, name: str) -> list[ast.AST]:
    """Every place within a scope that may mean the scope's variable of that name."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _has_own(node, name):
            continue
        if (isinstance(node, ast.Name) and node.id == name) or _is_shared(node, name):
            found.append(node)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def _has_own(function: ast.AST, name: str) -> bool:
    """Whether a nested function has its own variable of that name."""
    inside = list(ast.walk(function))
    return not any(_is_shared(node, name) for node in inside) and any(
        (isinstance(node, ast.arg) and node.arg == name)
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        for node in inside
    )


def _is_shared(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Global | ast.Nonlocal) and name in node.names
