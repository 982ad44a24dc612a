"""Defer `.item()` if its value is only summed."""

import ast
import builtins
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType
from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.edit.statements import summed_late
from stepscope.fixes.inspect.user_code import (
    SourceTree,
    call_under_way,
    short_path,
    source_tree,
    user_calling_frame,
    uses_of_name,
)
from stepscope.fixes.lazy import changes, torch, unseen
from stepscope.record.fix import Applied, NotApplied, Reason, SourceLine, Switch, Target
from stepscope.record.trial import Rejection

_MOST_WAITING = 8
"""Sums with more pending terms settle the older ones, which have long arrived."""
_BINARY = (
    *(operator.sub, operator.truediv, operator.floordiv, operator.mod, operator.pow, divmod),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
)
_COMPARING = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_UNARY = (
    *(operator.neg, operator.pos, operator.invert, operator.index, abs, round, int, float, bool),
    *(math.trunc, math.floor, math.ceil, hash, str, repr, format),
)
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
NO_ITEM = Reason("no_item", "no .item() calls")
ITEM = Target("item", ".item(){at}")
ERROR_CAUGHT = Reason(
    "error_caught", "an error that .item(){at} waits for is caught at line {value}"
)
SOURCE_UNREADABLE = Reason("source_unreadable", "the source of .item(){at} cannot be read")


class LateNumber:
    """Stands in for a float or int. Adding gives another late number, in the program's order, so
    the sum is bit-identical; so does scaling one that is not a sum. Everything else waits."""

    __slots__ = ("_depth", "_fresh", "_get", "_known")
    __array_ufunc__ = None  # numpy numbers leave arithmetic with it to us

    def __init__(self, get: Callable[[], Any], fresh: bool = True, depth: int = 0) -> None:
        self._get: Callable[[], Any] | None = get
        self._known: Any = None
        self._fresh = fresh
        self._depth = depth

    def settle(self) -> Any:
        if self._get is not None:
            self._known = self._get()
            self._get, self._depth = None, 0
        return self._known

    def __add__(self, other: Any) -> Any:
        return _summed(self, other)

    def __radd__(self, other: Any) -> Any:
        return _summed(other, self)

    def __mul__(self, other: Any) -> Any:
        return self._scaled(operator.mul, other)

    def __rmul__(self, other: Any) -> Any:
        return self._scaled(lambda one, two: two * one, other)

    def __truediv__(self, other: Any) -> Any:
        return self._scaled(operator.truediv, other)

    def _scaled(self, operation: Callable[[Any, Any], Any], other: Any) -> Any:
        if self._fresh and type(other) in (int, float) and other and self._depth < _MOST_WAITING:
            return LateNumber(lambda: operation(self.settle(), other), depth=self._depth + 1)
        return operation(self.settle(), settled(other))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, float) holds
        return type(self.settle())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.settle(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.settle()), (self.settle(),)


def settled(value: Any) -> Any:
    """The number behind a late one; other values unchanged."""
    return value.settle() if type(value) is LateNumber else value


def _summed(left: Any, right: Any) -> Any:
    """`left + right`, late if both are numbers."""
    for operand in (left, right):
        if type(operand) not in (LateNumber, int, float):
            return settled(left) + settled(right)
    waits = [operand for operand in (left, right) if type(operand) is LateNumber]
    deepest = max(waits, key=lambda operand: operand._depth)
    if deepest._depth >= _MOST_WAITING:
        deepest.settle()
    depth = 1 + max(operand._depth for operand in waits)
    return LateNumber(lambda: settled(left) + settled(right), fresh=False, depth=depth)


def _define(name: str, operation: Callable[..., Any], reflected: bool = False) -> None:
    """Make an operation wait and then use the plain number."""

    def method(self: LateNumber, *others: Any) -> Any:
        values = (self.settle(), *map(settled, others))
        return operation(*reversed(values)) if reflected else operation(*values)

    if f"__{name}__" not in vars(LateNumber):
        setattr(LateNumber, f"__{name}__", method)


for _operation in (*_BINARY, *_COMPARING, *_UNARY):
    _name = _operation.__name__.rstrip("_")
    _define(_name, _operation)
    if _operation in _BINARY:
        _define(f"r{_name}", _operation, reflected=True)


_TAKES_NUMBERS = ("print", "float", "int", "round", "abs", "str", "repr", "format", "bool", "len")


def reason_needed_now(call: ast.Call, tree: SourceTree) -> NotApplied | None:
    """Why a call's value cannot be late; None if it can: if it only goes into sums (`total +=
    loss.item() * n`) that are printed, compared or divided later.

    Follows how `LateNumber` calculates: adding gives a late number, scaling one that is not a sum
    does too, all else a plain one.
    """
    if (handler := _catches(call, tree)) is not None:
        return NotApplied(ERROR_CAUGHT, value=handler.lineno)
    uses = _Uses(tree)
    if refused := uses.follow(call, fresh=True):
        return refused
    while uses.pending:
        scope, name, fresh = uses.pending.pop()
        for node in uses_of_name(scope, name):
            if isinstance(node, ast.Global | ast.Nonlocal):
                return NotApplied(VALUE_SHARED, code=name)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                refused = uses.follow(node, fresh)
                if refused not in (_NOW, None):
                    return refused
    return None


def _catches(call: ast.Call, tree: SourceTree) -> ast.ExceptHandler | None:
    """Where the same function handles an error of the device that the call would raise: late, it
    would be raised elsewhere."""
    inner: ast.AST = call
    for outer in tree.above(call):
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return None
        if isinstance(outer, ast.Try | ast.TryStar) and inner in outer.body:
            for handler in outer.handlers:
                if _may_be_of_device(handler.type):
                    return handler
        inner = outer
    return None


def _may_be_of_device(caught: ast.expr | None) -> bool:
    """Whether an except clause takes a RuntimeError, or a kind of it. Errors that are no builtins
    may be of any kind."""
    if isinstance(caught, ast.Tuple):
        return any(map(_may_be_of_device, caught.elts))
    kind = getattr(builtins, caught.id, None) if isinstance(caught, ast.Name) else None
    return (
        not isinstance(kind, type)
        or issubclass(RuntimeError, kind)
        or issubclass(kind, RuntimeError)
    )


_NOW = NotApplied(VALUE_NEEDED_NOW)
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | ast.Module


class _Uses:
    """The names a late number passes through, and those still to follow."""

    def __init__(self, tree: SourceTree) -> None:
        self._tree = tree
        self._seen: set[tuple[ast.AST, str, bool]] = set()
        self.pending: list[tuple[ast.AST, str, bool]] = []

    def follow(self, node: ast.AST, fresh: bool) -> NotApplied | None:
        """Where an expression's value goes: `_NOW` if it becomes a plain number at once, None if it
        goes into a name (then followed), else a reason."""
        while isinstance(parent := self._tree.parent(node), ast.BinOp):
            if isinstance(parent.op, ast.Add):
                fresh = False
            elif not (fresh and _scales(parent, node)):
                return _NOW
            node = parent
        if isinstance(parent, ast.keyword):
            parent = self._tree.parent(parent)
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
            case ast.Call(func=func) if func is not node and _takes_numbers(func):
                return _NOW
            case ast.Expr():
                return None
            case ast.Return():
                return NotApplied(VALUE_RETURNED, value=parent.lineno)
        line = getattr(parent, "lineno", None) or getattr(node, "lineno", 0)
        return NotApplied(VALUE_HANDED_ON, value=line)

    def _fills_a_text(self, values: ast.Tuple) -> bool:
        """`"…" % (a, b)`"""
        match self._tree.parent(values):
            case ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str()), right=right):
                return right is values
        return False

    def _into(self, statement: ast.AST, name: str, fresh: bool) -> NotApplied | None:
        scope = next(at for at in self._tree.above(statement) if isinstance(at, _Scope))
        if isinstance(scope, ast.ClassDef):
            return NotApplied(VALUE_IN_CLASS, code=name)
        use = (scope, name, fresh)
        if use not in self._seen:
            self._seen.add(use)
            self.pending.append(use)
        return None


def _scales(operation: ast.BinOp, number: ast.AST) -> bool:
    """Whether it multiplies a number by something, or divides it by something."""
    if isinstance(operation.op, ast.Div):
        return operation.left is number
    return isinstance(operation.op, ast.Mult)


def _takes_numbers(func: ast.expr) -> bool:
    """Whether a function turns its argument into a plain number or text and keeps nothing."""
    match func:
        case ast.Name(id=name):
            return name in _TAKES_NUMBERS
        case ast.Attribute(value=ast.Name(id="math")):
            return True
        case ast.Attribute(value=ast.Constant(value=str()), attr="format"):
            return True
    return False


class LazyItem(Fix):
    """The host no longer waits for the device to have computed a loss it will print much later."""

    name = "lazyitem"
    group = "waiting"
    title = "defer .item() where its value is only summed"
    kind = FixKind.EXACT
    effort = "two lines"
    needs = "cuda"
    switch = Switch.AT_STEP
    missing = "nothing in the program's own code reads a CUDA scalar with .item()"
    rewrite = staticmethod(summed_late)
    devices: tuple[str, ...] = ("cuda",)
    """Devices whose scalars are deferred: on a CPU there is nothing to wait for."""

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return None if program.waits_for("item") else unsuitable(NO_ITEM)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        return [changes.drop_waits("item")] if known.device == "cuda" else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        """Of the lines that were seen to wait for a value."""
        return refused_by_all(refused for at in live.items for refused in _judged_by_line(*at))

    def install(self, value: Any, context: FixContext) -> None:
        sites: dict[tuple[CodeType, int], bool] = {}
        plain_tensors = (torch.Tensor, torch.nn.Parameter)

        def is_late_scalar(tensor: Any) -> bool:
            if type(tensor) not in plain_tensors:
                return False
            with unseen.unseen_by_program():
                scalar = tensor.numel() == 1 and not tensor.is_complex()
                return scalar and tensor.device.type in self.devices and not _captures(tensor)

        def item(call: Any, tensor: Any) -> Any:
            frame = user_calling_frame(__file__) if is_late_scalar(tensor) else None
            if frame is None:
                return call(tensor)
            site = (frame.f_code, frame.f_lasti)
            if site not in sites:
                sites[site] = self._judge(frame, context)
            if not sites[site]:
                return call(tensor)
            with unseen.unrecorded(), torch.inference_mode(False):
                return LateNumber(_begin_reading(tensor))

        context.seams.around(torch.Tensor, "item", item)

    @staticmethod
    def _judge(frame: Any, context: FixContext) -> bool:
        """Whether the value read at a place may be late; reported once."""
        found, place = call_under_way(frame), context.place()
        refused = reason_needed_now(*found) if found else NotApplied(SOURCE_UNREADABLE)
        if refused is None:
            context.applied(Applied(ITEM, place=place))
        else:
            context.not_applied(replace(refused, place=place))
        return refused is None

    def edit(self, value: Any, line: str) -> SourceEdit:
        changed = (
            line.replace(".item()", ".detach().double()") if line.count(".item()") == 1 else None
        )
        return SourceEdit(
            "add up the tensor itself, in float64 as Python would, and call .item() on the sum "
            "where it is printed",
            changed,
        )


def _judged_by_line(file: str, line: int) -> Iterator[NotApplied | None]:
    """What speaks against each `.item()` of a line."""
    tree, place = source_tree(file), SourceLine(short_path(file), line)
    if tree is None:
        yield NotApplied(SOURCE_UNREADABLE, place=place)
        return
    for call in tree.calls.values():
        last = isinstance(call.func, ast.Attribute) and call.func.attr == "item"
        if last and call.lineno <= line <= (call.end_lineno or line):
            refused = reason_needed_now(call, tree)
            yield refused and replace(refused, place=place)


def _captures(tensor: Any) -> bool:
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _begin_reading(tensor: Any) -> Any:
    """Start copying a scalar to the host in stream order; returns a function that waits for it."""
    scalar = tensor.detach().reshape(())
    if not scalar.is_cuda:
        return scalar.clone().tolist
    host = torch.empty((), dtype=scalar.dtype, device="cpu", pin_memory=True)
    host.copy_(scalar, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(scalar.device))

    def get() -> Any:
        arrived.synchronize()
        with unseen.unrecorded():
            return host.tolist()

    return get


FIX = LazyItem()
