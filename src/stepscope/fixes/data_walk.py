"""The walk behind `look`: objects, the code they may run, and what that code refers to.

Calls on things known only at run time are followed by name: any object met whose class has a
method of that name is taken to be meant. So more is looked at than will run, never less.
"""

from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from stepscope.fixes.data_code import ABSENT, Reading, read, scope_of
from stepscope.fixes.data_look import Look
from stepscope.fixes.data_names import (
    RANDOM_METHODS,
    RANDOM_MODULES,
    RANDOM_TYPES,
    SUMS,
    draws_in_torch,
    module_of,
    trusted,
    words,
)
from stepscope.fixes.data_objects import Visits
from stepscope.fixes.places import short_path as short
from stepscope.probe.dataclock_points import CallPoint
from stepscope.probe.sites import is_users

_MOST_CODE: Final = 3000
_CALLED_SILENTLY: Final = ("__call__", "__getitem__", "__getitems__", "__iter__", "forward")
_BUILDING: Final = ("__init__", "__new__", "__post_init__")  # what these set is new
_NOT_CALLED: Final = words(
    "__init__ __new__ __repr__ __str__ __del__ __getstate__ __setstate__ __reduce__"
    " __reduce_ex__ __init_subclass__ __class_getitem__ __copy__ __deepcopy__ __dir__"
    " __sizeof__ __add__ __radd__ __or__"
)


class Walker(Visits):
    """One look at a number of things."""

    def __init__(self) -> None:
        super().__init__(Look())
        self._names: set[str] = set(_CALLED_SILENTLY)
        self._classes: dict[type, None] = {}
        self._built: set[type] = set()
        self._read: set[Any] = set()

    def finish(self) -> None:
        """Follow calls until no more code comes to light."""
        seen: set[tuple[type, str]] = set()
        while True:
            new = [
                (cls, name)
                for cls in self._classes
                for name in vars(cls)
                if (cls, name) not in seen and self._reachable(cls, name)
            ]
            if not new:
                return
            for cls, name in new:
                seen.add((cls, name))
                self._method(cls, vars(cls)[name])

    def adopt(self, cls: type) -> None:
        """Instances of a class are there: its methods may be called."""
        for base in cls.__mro__:
            if base is not object and not trusted(base):
                self._classes.setdefault(base)

    def refer(self, thing: Any, text: str, where: str) -> None:
        """Code names something outside it."""
        if thing is ABSENT:
            self.say("unknown", f"`{text}` at {where} is not known")
        elif isinstance(thing, ModuleType):
            if thing.__name__ in RANDOM_MODULES:
                self.say("draws", f"`{text}` at {where}")
        elif isinstance(thing, type):
            self._class(thing, text, where)
        elif isinstance(thing, (BuiltinFunctionType, FunctionType)) and trusted(thing):
            self._trusted_call(thing, text, where)
        else:
            self.visit(thing, f"`{text}` at {where}")

    def function(self, function: Any) -> None:
        """A Python function may be called, and what it wraps."""
        layer: Any = function
        while layer is not None:
            if isinstance(layer, FunctionType):
                self._code(layer.__code__, scope_of(layer))
            layer = getattr(layer, "__wrapped__", None)

    def _code(self, code: Any, scope: Any) -> None:
        if code in self._read:
            return
        if len(self._read) > _MOST_CODE:
            self.say("unknown", "there is too much code to look through")
            return
        self._read.add(code)
        reading = read(code, scope)
        self._names |= reading.names.keys()
        if code.co_name in _BUILDING:
            reading.sets.clear()
        self._judge(reading, short(code.co_filename), is_users(code))
        for inner in reading.inner:
            self._code(inner, scope)

    def _judge(self, reading: Reading, file: str, users: bool) -> None:
        for chain, text, line in reading.chains:
            for thing in chain:
                if thing is not ABSENT or users:  # a library's own optional imports are its affair
                    self.refer(thing, text, f"{file}:{line}")
        for name, line in reading.names.items():
            where = f"`{name}` at {file}:{line}"
            if name in RANDOM_METHODS:
                self.say("draws", where)
            elif name in SUMS & reading.calls:
                self.say("sums", where)
            elif name == "cuda":
                self.say("cuda", f"moves data to the GPU ({where})")
        for name, line in reading.sets.items():
            self.say("keeps", f"`{name}` is set at {file}:{line}")
        if reading.products:
            self.say("sums", f"`@` at {file}:{reading.products}")
        if any(text.startswith("cuda") for text in reading.strings) and users:
            self.say("cuda", f"names the GPU in {file}")

    def _class(self, cls: type, text: str, where: str) -> None:
        if (module_of(cls), cls.__name__) in RANDOM_TYPES:
            self.say("draws", f"`{text}` at {where}")
        elif trusted(cls):
            if module_of(cls).startswith("torch") and draws_in_torch(cls.__name__):
                self.say("draws", f"`{text}` at {where}")
        else:
            self._built.add(cls)
            self.adopt(cls)

    def _trusted_call(self, function: Any, text: str, where: str) -> None:
        name = getattr(function, "__name__", "")
        owner = type(getattr(function, "__self__", None))
        if module_of(function) in RANDOM_MODULES or _random(owner):
            self.say("draws", f"`{text}` at {where}")
        elif name == "get_worker_info":
            self.look.splits = True
        elif name in ("eval", "exec", "__import__"):
            self.say("unknown", f"`{text}` at {where} is not known")
        elif (module_of(function) or "torch").startswith("torch"):
            if draws_in_torch(name):
                self.say("draws", f"`{text}` at {where}")
            elif name in SUMS:
                self.say("sums", f"`{text}` at {where}")

    def _reachable(self, cls: type, name: str) -> bool:
        if name in self._names:
            return True
        if not (name.startswith("__") and name.endswith("__")):
            return False
        return name not in _NOT_CALLED or (name in ("__init__", "__new__") and cls in self._built)

    def _method(self, cls: type, found: Any) -> None:
        for function in _functions(found):
            self.function(function)
        if type(found).__name__ in ("builtin_function_or_method", "method_descriptor"):
            self.say("unknown", f"what {cls.__qualname__} does is not known")


def _functions(found: Any) -> Iterator[Any]:
    """The Python functions behind a class's attribute."""
    if isinstance(found, CallPoint):
        found = found.own
    behind = ("fget", "func", "__func__")  # of properties, cached properties, class methods
    for part in (found, *(getattr(found, name, None) for name in behind)):
        if isinstance(part, FunctionType) or hasattr(part, "__wrapped__"):
            yield part


def _random(owner: type) -> bool:
    return any((module_of(base), base.__name__) in RANDOM_TYPES for base in owner.__mro__)
