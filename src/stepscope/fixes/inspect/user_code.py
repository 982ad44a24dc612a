"""The user's own code behind a call: its frame, its line, the call expression, and where the value
of that expression goes.

A number may come late where it only goes into sums (`total += loss.item() * n`), and where those
are printed, compared or divided, which is when they are needed. This knows how
`waiting.lazyitem.LateNumber` calculates: adding gives a late number, scaling one that is no sum
does too, all else a plain one.
"""

import ast
import linecache
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType

from stepscope.probe.sites import is_user_code
from stepscope.record.fix import NotApplied, Reason, SourceLine

VALUE_NEEDED_NOW = Reason("value_needed_now", "the value of .item(){at} is needed at once")
VALUE_SHARED = Reason(
    "value_shared", "the value of .item(){at} goes into `{code}`, which other functions may read"
)
VALUE_RETURNED = Reason(
    "value_returned",
    "the value of .item(){at} is returned at line {value}, where a plain number is needed",
)
VALUE_HANDED_ON = Reason(
    "value_handed_on",
    "the value of .item(){at} is handed on at line {value}, where a plain number is needed",
)
VALUE_IN_CLASS = Reason("value_in_class", "the value of .item(){at} becomes `{code}` of a class")


def user_location() -> SourceLine | None:
    """The line of the nearest user's frame; None where there is none."""
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
    """As the user would name a file: from the working directory, or by its name alone."""
    near = os.path.relpath(path) if os.path.isabs(path) else path
    return os.path.basename(path) if near.startswith("..") else near


PACKAGE_FOLDER = str(Path(__file__).parents[2])
"""The folder of stepscope itself."""
_WRAPPERS = str(Path(PACKAGE_FOLDER) / "probe" / "points")


def calling_frame(own: str) -> FrameType | None:
    """The frame that made the present call, past the seams and points it came through.

    None where stepscope itself made it: another fix, or the observer.
    `own` is the file of the fix that asks.
    """
    passed = (_WRAPPERS, __file__, own)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(passed):
        frame = frame.f_back
    if frame is None or is_user_code(frame.f_code):
        return frame
    return None if frame.f_code.co_filename.startswith(PACKAGE_FOLDER) else frame


def user_calling_frame(own: str) -> FrameType | None:
    """The same if it is the user's own code; None where a library or another fix calls."""
    frame = calling_frame(own)
    return frame if frame is not None and is_user_code(frame.f_code) else None


class SourceTree:
    """A source file's syntax tree in which every node knows its parent."""

    def __init__(self, source: str) -> None:
        self.root = ast.parse(source)
        self._parents = {
            child: node for node in ast.walk(self.root) for child in ast.iter_child_nodes(node)
        }
        self._calls = {
            (node.end_lineno, node.end_col_offset): node
            for node in ast.walk(self.root)
            if isinstance(node, ast.Call)
        }

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What a node is a part of; None for the whole file."""
        return self._parents.get(node)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """Everything a node is a part of, the nearest first."""
        at = self.parent(node)
        while at is not None:
            yield at
            at = self.parent(at)

    def call_ending_at(self, line: int | None, column: int | None) -> ast.Call | None:
        """The call whose closing bracket is there: no two share one."""
        return self._calls.get((line, column))


@cache
def source_tree(file: str) -> SourceTree | None:
    """A file's tree; None where there is no source, or none that can be read."""
    try:
        return SourceTree("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def call_under_way(frame: FrameType) -> tuple[ast.Call, SourceTree] | None:
    """The call expression a frame is in the middle of; None where it cannot be told."""
    tree = source_tree(frame.f_code.co_filename)
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    _, end_line, _, end_column = next(positions, (None, None, None, None))
    call = tree.call_ending_at(end_line, end_column) if tree is not None else None
    return (call, tree) if call is not None and tree is not None else None


_TAKES_NUMBERS = ("print", "float", "int", "round", "abs", "str", "repr", "format", "bool", "len")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def reason_needed_now(call: ast.Call, tree: SourceTree) -> NotApplied | None:
    """Why the value of a call cannot come late; None where it can."""
    uses = _Uses(tree)
    return uses.follow(call, fresh=True) or uses.check()


_NOW = NotApplied(VALUE_NEEDED_NOW)


@dataclass
class _Uses:
    """The names a late number goes through, and what is left to be looked at."""

    tree: SourceTree
    pending: list[tuple[ast.AST, str, bool]] = field(default_factory=list)
    seen: set[tuple[ast.AST, str, bool]] = field(default_factory=set)

    def check(self) -> NotApplied | None:
        """Look at every use of every name the number goes into."""
        while self.pending:
            scope, name, fresh = self.pending.pop()
            for node in uses_of_name(scope, name):
                if isinstance(node, ast.Global | ast.Nonlocal):
                    return NotApplied(VALUE_SHARED, code=name)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    verdict = self.follow(node, fresh)
                    if verdict not in (_NOW, None):
                        return verdict
        return None

    def follow(self, node: ast.AST, fresh: bool) -> NotApplied | None:
        """Where an expression's value goes: `_NOW` if a plain number comes of it at once, None if
        into a name (then to be looked at), else a reason."""
        while True:
            parent = self.tree.parent(node)
            if isinstance(parent, ast.BinOp):
                if isinstance(parent.op, ast.Add):
                    fresh = False
                elif not (fresh and _scales(parent, node)):
                    return _NOW
                node = parent
                continue
            return self._end(node, parent, fresh)

    def _end(self, node: ast.AST, parent: ast.AST | None, fresh: bool) -> NotApplied | None:
        if isinstance(parent, ast.keyword):
            parent = self.tree.parent(parent)
        match parent:
            case ast.AugAssign(op=ast.Add(), target=ast.Name(id=name)):
                return self._into(parent, name, fresh=False)
            case ast.AugAssign(target=ast.Name()):
                return _NOW
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                return self._into(parent, name, fresh)
            case ast.FormattedValue() | ast.Compare() | ast.UnaryOp():
                return _NOW
            case ast.If() | ast.While() | ast.Assert() | ast.IfExp() if parent.test is node:
                return _NOW
            case ast.Tuple() if self._fills_a_text(parent):
                return _NOW
            case ast.Expr():
                return None
            case ast.Call(func=func) if func is not node and _takes_numbers(func):
                return _NOW
            case ast.Return():
                return NotApplied(VALUE_RETURNED, value=parent.lineno)
        line = getattr(parent, "lineno", None) or getattr(node, "lineno", 0)
        return NotApplied(VALUE_HANDED_ON, value=line)

    def _fills_a_text(self, values: ast.Tuple) -> bool:
        """`"…" % (a, b)`"""
        match self.tree.parent(values):
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()), right=right):
                return right is values
        return False

    def _into(self, statement: ast.AST, name: str, fresh: bool) -> NotApplied | None:
        scope = next(
            at
            for at in self.tree.above(statement)
            if isinstance(at, _Function | ast.Lambda | ast.ClassDef | ast.Module)
        )
        if isinstance(scope, ast.ClassDef):
            return NotApplied(VALUE_IN_CLASS, code=name)
        use = (scope, name, fresh)
        if use not in self.seen:
            self.seen.add(use)
            self.pending.append(use)
        return None


def _scales(operation: ast.BinOp, number: ast.AST) -> bool:
    """Whether it multiplies a number by something, or divides it by something."""
    if isinstance(operation.op, ast.Div):
        return operation.left is number
    return isinstance(operation.op, ast.Mult)


def _takes_numbers(func: ast.expr) -> bool:
    """Whether a function makes a plain number or a text of what it is given, and keeps nothing."""
    match func:
        case ast.Name(id=name):
            return name in _TAKES_NUMBERS
        case ast.Attribute(value=ast.Name(id="math")):
            return True
        case ast.Attribute(value=ast.Constant(value=str()), attr="format"):
            return True
    return False


def uses_of_name(scope: ast.AST, name: str) -> list[ast.AST]:
    """Every place within a scope that may mean the scope's variable of that name."""
    found: list[ast.AST] = []
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        if isinstance(node, _Function) and _has_own(node, name):
            continue
        named = node.id == name if isinstance(node, ast.Name) else False
        if named or (isinstance(node, ast.Global | ast.Nonlocal) and name in node.names):
            found.append(node)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def _has_own(function: _Function, name: str) -> bool:
    """Whether a nested function has a variable of its own of that name."""
    inside = list(ast.walk(function))
    if any(isinstance(n, ast.Global | ast.Nonlocal) and name in n.names for n in inside):
        return False
    taken = any(isinstance(n, ast.arg) and n.arg == name for n in inside)
    return taken or any(
        isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in inside
    )
