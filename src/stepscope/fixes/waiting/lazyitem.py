"""Answer `.item()` late where its value is merely summed."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import CodeType
from typing import TYPE_CHECKING, Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.user_code import call_under_way, reason_needed_now, user_calling_frame
from stepscope.record.fix import Applied, NotApplied, Reason, Target
from stepscope.record.trial import Rejection

if TYPE_CHECKING:
    from stepscope.fixes.edit.locate import FoundEdits, SourceFiles

_MOST_WAITING = 8
"""Sums of more unsettled terms settle the older ones; those have long arrived."""

_BINARY = (
    *(operator.sub, operator.truediv, operator.floordiv, operator.mod, operator.pow, divmod),
    *(operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift),
)
_COMPARING = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_UNARY = (
    *(operator.neg, operator.pos, operator.invert, operator.index, abs, round, int, float, bool),
    *(math.trunc, math.floor, math.ceil, hash, str, repr, format),
)


NO_ITEM = Reason("no_item", "no .item() calls")
ITEM = Target("item", ".item(){at}")
SOURCE_UNREADABLE = Reason("source_unreadable", "the source of .item(){at} cannot be read")


class LateNumber:
    """Stands for a float or int. Adding gives another late one, in the order the program adds, so
    the sum is the same to the last bit; so does scaling one that is no sum. All else waits."""

    __slots__ = ("_depth", "_fresh", "_get", "_known")
    __array_ufunc__ = None  # numpy's numbers leave calculating with it to us

    def __init__(self, get: Callable[[], Any], fresh: bool = True, depth: int = 0) -> None:
        self._get: Callable[[], Any] | None = get
        self._known: Any = None
        self._fresh = fresh
        self._depth = depth

    def settle(self) -> Any:
        """The number itself."""
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
    """The number a late one stands for; anything else as it is."""
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
    """Have an operation wait, and then be that of the plain number."""

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


class LazyItem(Fix):
    """The host no longer waits for the device to have computed a loss it will print much later."""

    name = "lazyitem"
    group = "waiting"
    title = "answer .item() late where its value is merely summed"
    kind = FixKind.EXACT
    effort = "two lines"
    needs = "cuda"
    missing = "nothing in the program's own code reads a CUDA scalar with .item()"
    devices: tuple[str, ...] = ("cuda",)
    """Where scalars are answered late: on a CPU there is nothing to wait for."""

    def applies(self, program: ObservedProgram) -> Rejection | None:
        return None if program.waits_for("item") else unsuitable(NO_ITEM)

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Reading numbers in the loop no longer waits."""
        from stepscope.analyze.replay.changes import drop_waits

        return [drop_waits("item")] if known.device == "cuda" else None

    def install(self, value: Any, context: FixContext) -> None:
        import torch

        sites: dict[tuple[CodeType, int], bool] = {}
        plain_tensors = (torch.Tensor, torch.nn.Parameter)

        def item(call: Any, tensor: Any) -> Any:
            if type(tensor) not in plain_tensors or tensor.device.type not in self.devices:
                return call(tensor)
            frame = user_calling_frame(__file__)
            if frame is None or tensor.numel() != 1 or tensor.is_complex():
                return call(tensor)
            site = (frame.f_code, frame.f_lasti)
            if site not in sites:
                sites[site] = self._judge(frame, context)
            if not sites[site] or _capturing(tensor):
                return call(tensor)
            return LateNumber(_begin_reading(tensor))

        context.seams.around(torch.Tensor, "item", item)

    @staticmethod
    def _judge(frame: Any, context: FixContext) -> bool:
        """Whether the value read at a place may come late, said once."""
        found = call_under_way(frame)
        if found is None:
            context.not_applied(NotApplied(SOURCE_UNREADABLE, place=context.place()))
            return False
        needed = reason_needed_now(*found)
        if needed is not None:
            context.not_applied(replace(needed, place=context.place()))
            return False
        context.applied(Applied(ITEM, place=context.place()))
        return True

    def edit(self, value: Any, line: str) -> SourceEdit:
        once = line.count(".item()") == 1
        return SourceEdit(
            "add up the tensor itself, in float64 as Python would, and call .item() on the sum "
            "where it is printed",
            line.replace(".item()", ".detach().double()") if once else None,
        )

    def patch(self, value: Any, applied: Sequence[Applied], files: "SourceFiles") -> "FoundEdits":
        from stepscope.fixes.edit.locate import at_each_place
        from stepscope.fixes.edit.statements import summed_late

        return at_each_place(self, value, applied, files, summed_late)


def _capturing(tensor: Any) -> bool:
    import torch

    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def _begin_reading(tensor: Any) -> Any:
    """Start to copy a scalar to the host, in its turn on the stream; what waits for it."""
    import torch

    scalar = tensor.detach().reshape(())
    if not scalar.is_cuda:
        return scalar.clone().tolist
    host = torch.empty((), dtype=scalar.dtype, pin_memory=True)
    host.copy_(scalar, non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(scalar.device))

    def get() -> Any:
        arrived.synchronize()
        return host.tolist()

    return get


FIX = LazyItem()
