"""The expression in the user's source that makes a call, found by where it stands."""

import ast
import linecache
from collections.abc import Iterator
from functools import cache
from itertools import islice
from types import FrameType


class Tree:
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
def tree_of(file: str) -> Tree | None:
    """A file's tree; None where there is no source, or none that can be read."""
    try:
        return Tree("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def call_made_by(frame: FrameType) -> tuple[ast.Call, Tree] | None:
    """The call expression a frame is in the middle of; None where it cannot be told."""
    tree = tree_of(frame.f_code.co_filename)
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    _, end_line, _, end_column = next(positions, (None, None, None, None))
    call = tree.call_ending_at(end_line, end_column) if tree is not None else None
    return (call, tree) if call is not None and tree is not None else None
