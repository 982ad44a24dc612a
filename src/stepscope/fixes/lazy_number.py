"""A number that is still on its way: it can be added up, and is waited for when it is needed."""

import math
import operator
from collections.abc import Callable
from typing import Any

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


class Late:
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
            return Late(lambda: operation(self.settle(), other), depth=self._depth + 1)
        return operation(self.settle(), plain(other))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance(x, float) holds
        return type(self.settle())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.settle(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self.settle()), (self.settle(),)


def plain(value: Any) -> Any:
    """The number a late one stands for; anything else as it is."""
    return value.settle() if type(value) is Late else value


def _summed(left: Any, right: Any) -> Any:
    """`left + right`, late if both are numbers."""
    for operand in (left, right):
        if type(operand) not in (Late, int, float):
            return plain(left) + plain(right)
    waits = [operand for operand in (left, right) if type(operand) is Late]
    deepest = max(waits, key=lambda operand: operand._depth)
    if deepest._depth >= _MOST_WAITING:
        deepest.settle()
    depth = 1 + max(operand._depth for operand in waits)
    return Late(lambda: plain(left) + plain(right), fresh=False, depth=depth)


def _define(name: str, operation: Callable[..., Any], reflected: bool = False) -> None:
    """Have an operation wait, and then be that of the plain number."""

    def method(self: Late, *others: Any) -> Any:
        values = (self.settle(), *map(plain, others))
        return operation(*reversed(values)) if reflected else operation(*values)

    if f"__{name}__" not in vars(Late):
        setattr(Late, f"__{name}__", method)


for _operation in (*_BINARY, *_COMPARING, *_UNARY):
    _name = _operation.__name__.rstrip("_")
    _define(_name, _operation)
    if _operation in _BINARY:
        _define(f"r{_name}", _operation, reflected=True)
