"""Whether a number read at some place in the source may come late.

It may where it only goes into sums: `total += loss.item() * n`, and where the sums are printed,
compared or divided, which is when they are needed. This knows how late numbers calculate (see
`lazy_number`): adding gives a late one, multiplying and dividing one that is no sum does too, all
else gives a plain number.
"""

import ast
from dataclasses import dataclass, field

from stepscope.fixes.lazy_source import Tree

_TAKES_NUMBERS = ("print", "float", "int", "round", "abs", "str", "repr", "format", "bool", "len")
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def why_needed(call: ast.Call, tree: Tree) -> str | None:
    """Why the value of a call cannot come late, to follow "the value"; None where it can."""
    uses = _Uses(tree)
    verdict = uses.follow(call, fresh=True)
    if verdict == _NOW:
        return "is needed at once"
    return verdict or uses.check()


_NOW = "now"


@dataclass
class _Uses:
    """The names a late number goes through, and what is left to be looked at."""

    tree: Tree
    pending: list[tuple[ast.AST, str, bool]] = field(default_factory=list)
    seen: set[tuple[ast.AST, str, bool]] = field(default_factory=set)

    def check(self) -> str | None:
        """Look at every use of every name the number goes into."""
        while self.pending:
            scope, name, fresh = self.pending.pop()
            for node in mentions(scope, name):
                if isinstance(node, ast.Global | ast.Nonlocal):
                    return f"goes into `{name}`, which other functions may read"
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    verdict = self.follow(node, fresh)
                    if verdict not in (_NOW, None):
                        return verdict
        return None

    def follow(self, node: ast.AST, fresh: bool) -> str | None:
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

    def _end(self, node: ast.AST, parent: ast.AST | None, fresh: bool) -> str | None:
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
                return f"is returned at line {parent.lineno}, where a plain number is wanted"
        line = getattr(parent, "lineno", None) or getattr(node, "lineno", 0)
        return f"is handed on at line {line}, where a plain number is wanted"

    def _fills_a_text(self, values: ast.Tuple) -> bool:
        """`"…" % (a, b)`"""
        match self.tree.parent(values):
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()), right=right):
                return right is values
        return False

    def _into(self, statement: ast.AST, name: str, fresh: bool) -> str | None:
        scope = next(
            at
            for at in self.tree.above(statement)
            if isinstance(at, _Function | ast.Lambda | ast.ClassDef | ast.Module)
        )
        if isinstance(scope, ast.ClassDef):
            return f"becomes `{name}` of a class"
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


def mentions(scope: ast.AST, name: str) -> list[ast.AST]:
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
