"""Where the data clock looks on: descriptors in place of three attributes of other classes.

A descriptor learns that a call begins when the callable is looked up, and that it has ended when
the callable it handed out, a `partial` nobody else holds, is destroyed. So the program's own
frames stay next to each other: tracebacks that workers send home, `stacklevel` of warnings.
"""

import sys
from functools import partial
from threading import get_ident
from time import perf_counter_ns
from types import FunctionType, MethodType
from typing import Any, Protocol
from weakref import ref

_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE
_super: Any = super  # of classes no type checker can know


class Clock(Protocol):
    """What the points ask of the data clock."""

    watch: Any
    skip: int

    def begin(self, fetcher: Any) -> list[int] | None: ...
    def collate(self, fetcher: Any, data: Any, index: Any) -> None: ...
    def end(self, stack: list[int]) -> None: ...
    def failed_at_end(self, problem: BaseException) -> None: ...
    def switch_off(self) -> None: ...


class _TimedFetch(partial):  # type: ignore[type-arg]
    __slots__ = ("clock", "stack")
    clock: Clock
    stack: list[int]

    def __del__(self) -> None:
        self.clock.end(self.stack)


class _TimedCall(partial):  # type: ignore[type-arg]
    __slots__ = ("depth", "point")
    depth: int  # of the stack when this call was on top
    point: "CallPoint"

    def __del__(self) -> None:
        # Written out, as in CallPoint: this runs for every transform of every sample.
        try:
            watch = self.point.watch
            stack = watch.stack
            depth = self.depth
            if stack is not None and len(stack) >= depth:
                now = perf_counter_ns()
                watch.sums[stack[-1]] += now - watch.last_ns
                watch.last_ns = now
                if len(stack) == depth:
                    stack.pop()
                else:
                    del stack[depth - 1 :]
        except BaseException as problem:
            self.point.clock.failed_at_end(problem)


class FetchPoint:
    """In place of a fetcher class's `fetch`."""

    def __init__(self, clock: Clock, original: Any) -> None:
        self._clock = clock
        self.original = original

    def __get__(self, fetcher: Any, owner: type | None = None) -> Any:
        if fetcher is None:
            return self.original
        if self._clock.skip:
            self._clock.skip -= 1
            return MethodType(self.original, fetcher)
        stack = self._clock.begin(fetcher)
        if stack is None:
            return self.original.__get__(fetcher, owner)
        timed = _TimedFetch(self.original, fetcher)
        timed.clock, timed.stack = self._clock, stack
        self._clock.watch.holder = ref(timed)
        return timed


class CollatePoint:
    """In place of the fetchers' attribute `collate_fn`: looked up when the samples are there.
    Collate is the last thing a fetch does: it ends with it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __get__(self, fetcher: Any, owner: type | None = None) -> Any:
        collate = None if fetcher is None else fetcher.__dict__.get("collate_fn")
        if collate is None:
            raise AttributeError("collate_fn")
        if self._clock.watch.stack is None:
            return collate
        frame = sys._getframe(1)
        if frame.f_code.co_name == "fetch":
            names = frame.f_locals
            self._clock.collate(fetcher, names.get("data"), names.get("possibly_batched_index"))
        return collate

    def __set__(self, fetcher: Any, collate: Any) -> None:
        vars(fetcher)["collate_fn"] = collate

    def __delete__(self, fetcher: Any) -> None:
        if vars(fetcher).pop("collate_fn", None) is None:
            raise AttributeError("collate_fn")


class CallPoint:
    """In place of `__call__` of a class that some transform has."""

    __slots__ = ("_base", "_cls", "clock", "own", "watch")

    def __init__(self, clock: Clock, cls: type, own: FunctionType | None) -> None:
        self.clock = clock
        self.watch = clock.watch
        self._cls = cls
        self._base: Any = next((base for base in cls.__mro__[1:] if "__call__" in vars(base)), None)
        self.own = own

    def __get__(self, transform: Any, owner: type | None = None) -> Any:
        own = self.own
        if transform is None:
            # Inherited calls are looked up each time: others may patch the base meanwhile.
            return _super(self._cls, owner).__call__ if own is None else own
        watch = self.watch
        stack = watch.stack
        if stack is None or (slot := watch.slot_of.get(id(transform))) is None:
            return self._bound(transform, owner)
        try:
            if watch.tracer is not None:
                slot = watch.tracer.transform_called(slot)
            # A subclass's call that goes on to its base's is one call.
            if stack[-1] == slot or watch.thread != get_ident():
                return self._bound(transform, owner)
            if own is None and owner is self._cls:
                own = self._base.__call__
            timed = _TimedCall(own, transform) if own else _TimedCall(self._bound(transform, owner))
            timed.point = self
            now = perf_counter_ns()
            sums = watch.sums
            sums[stack[-1]] += now - watch.last_ns
            sums[slot - 1] += 1
            stack.append(slot)
            timed.depth = len(stack)
            watch.last_ns = now
            return timed
        except Exception:
            self.clock.switch_off()
            return self._bound(transform, owner)

    def _bound(self, transform: Any, owner: type | None = None) -> Any:
        if self.own is None:
            return _super(self._cls, transform).__call__
        return self.own.__get__(transform, owner)


def own_call(cls: type) -> FunctionType | None:
    """The class's own `__call__`, None if it is inherited."""
    own = vars(cls).get("__call__")
    return own if isinstance(own, FunctionType) else None


def is_timeable(cls: type) -> bool:
    """Whether calls of instances can be timed: a Python `__call__` on a class that can be changed.
    Not torch's own modules: models are made of them too. Calls written in C take no signals, so
    Ctrl-C would first be seen in our destructor, which cannot raise it."""
    if cls.__module__.partition(".")[0] == "torch" or cls.__flags__ & _IMMUTABLE:
        return False
    for base in cls.__mro__:
        if "__call__" in vars(base):
            return isinstance(vars(base)["__call__"], (FunctionType, CallPoint))
    return False
