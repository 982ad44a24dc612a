"""A user's file, editable in places without changing the rest."""

import ast
import copy
import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass

_NO_CODE = (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
Block = ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith
Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


class PatchError(Exception):
    """Why a place cannot be changed, in a few words for the user."""


@dataclass(frozen=True, slots=True)
class Change:
    """Characters `start` to `end` of a file become `text`; several at one place are sorted by
    `order`."""

    start: int
    end: int
    text: str
    order: int = 0


class Source:
    """One file: its text and tree, and the position of nodes in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.split("\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self.parents = {
            child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)
        }

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def line(self, number: int) -> str:
        """A line's text without its line end, counted from 1."""
        return self._lines[number - 1].removesuffix("\r")

    def indent(self, number: int) -> str:
        line = self.line(number)
        return line[: len(line) - len(line.lstrip())]

    def begins(self, number: int) -> int:
        """The offset of a line's start; for the line after the last, the file's end."""
        return min(self._starts[number - 1], len(self.text))

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._offset(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def _offset(self, line: int, column: int) -> int:
        """The offset of a position from the tree, whose columns count bytes."""
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that a line belongs to, by its head if it has a body."""
        found = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.stmt) and node.lineno <= line <= _head_end(node)
        ]
        return max(found, key=lambda node: (node.lineno, node.col_offset), default=None)

    def scope(self, node: ast.AST) -> Scope:
        while True:
            node = self.parents[node]
            if isinstance(node, Scope):
                return node

    def stands_alone(self, node: ast.stmt) -> bool:
        """Whether a statement has its lines to itself."""
        last = node.end_lineno or node.lineno
        before = self.text[self.begins(node.lineno) : self.start(node)]
        after = self.text[self.end(node) : self.begins(last + 1)].strip()
        return not before.strip() and (not after or after.startswith("#"))

    def after(self, node: ast.stmt, lines: Iterable[str], order: int = 0) -> Change:
        """Lines put after a statement, at its indentation. Raises PatchError."""
        if not self.stands_alone(node):
            raise PatchError("other code stands on the same line")
        at = self.begins((node.end_lineno or node.lineno) + 1)
        indent = self.indent(node.lineno)
        text = "".join(f"{indent}{line}{self.newline}" for line in lines)
        if not self.text[:at].endswith("\n"):  # the last line of a file that does not end
            text = self.newline + text.removesuffix(self.newline)
        return Change(at, at, text, order)

    def code_before(self, offset: int, begin: int) -> tuple[str, int, int]:
        """The last token between two offsets that is code: its text, its end, and its line."""
        found = ("", begin, 1)
        for token in tokenize.generate_tokens(io.StringIO(self.text, newline="").readline):
            end = self._starts[token.end[0] - 1] + token.end[1]
            if end > offset:
                break
            if token.type not in _NO_CODE and end > begin:
                found = (token.string, end, token.end[0])
        return found


def deeper(indent: str) -> str:
    """What a block at an indentation adds to it."""
    return "\t" if indent.endswith("\t") else "    "


def indented(line: str) -> str | None:
    """A statement on one line, as it stands in a block of its own; None where that takes more than
    the line: where it opens a block, or is not whole."""
    try:
        whole = len(ast.parse(line.strip()).body) == 1
    except (SyntaxError, ValueError):
        whole = False
    indent = line[: len(line) - len(line.lstrip())]
    return f"{indent}{deeper(indent)}{line.lstrip()}" if whole else None


def statement_head(node: ast.stmt) -> ast.stmt:
    """A statement without its body: the same nodes otherwise."""
    if not isinstance(node, Block):
        return node
    head = copy.copy(node)
    head.body = [ast.Pass()]
    if not isinstance(head, ast.With | ast.AsyncWith):
        head.orelse = []
    return head


def apply_changes(text: str, changes: Iterable[Change]) -> str:
    """A text with changes made. Raises PatchError where two of them overlap."""
    parts, at = [], 0
    for change in sorted(changes, key=lambda one: (one.start, one.end, one.order)):
        if change.start < at:
            raise PatchError("two edits meet in the same place")
        parts += [text[at : change.start], change.text]
        at = change.end
    return "".join([*parts, text[at:]])


def _head_end(node: ast.stmt) -> int:
    """The last line of a statement, or of what stands before its body."""
    body = getattr(node, "body", None)
    last = node.end_lineno or node.lineno
    if not isinstance(body, list) or not body:
        return last
    return max(node.lineno, int(body[0].lineno) - 1)
