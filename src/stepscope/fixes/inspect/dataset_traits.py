"""What can be known about a dataset, collate function or sampler without running it: whether it
draws random numbers, keeps state, holds CUDA tensors or open files.

Calls on things known only at run time are resolved by name to every object seen whose class has
such a method. So more code is inspected than will run, never less.
"""

import io
import logging
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from stepscope.fixes.inspect.code_stores import read_stores
from stepscope.fixes.inspect.dataset_code import (
    ABSENT,
    HANDLES,
    RANDOM_METHODS,
    RANDOM_MODULES,
    RANDOM_TYPES,
    SUMS,
    Scope,
    draws_in_torch,
    is_trusted,
    module_of,
    read_code,
    word_set,
)
from stepscope.fixes.inspect.state_digest import StateSlot, is_path
from stepscope.fixes.inspect.tensors import is_shared
from stepscope.fixes.inspect.user_code import short_path as short
from stepscope.fixes.lazy import torch
from stepscope.probe.dataclock.points import CallPoint
from stepscope.probe.sites import is_user_code, is_user_file
from stepscope.record.fix import DataChange, SourceLine, Trait, TraitKind, Variation


@dataclass(slots=True)
class DatasetTraits:
    """The first trait seen of each kind, or None."""

    draws: Trait | None = None
    """It draws random numbers."""
    unknown: Trait | None = None
    """Something in it could not be inspected."""
    keeps: Trait | None = None
    """It changes itself from one sample to the next. A container it fills with what it computes
    from other things is a memo, a global it only adds to a log."""
    sums: Trait | None = None
    """It sums tensors, which rounds differently with another number of threads."""
    cuda: Trait | None = None
    """It holds or makes things on the GPU, which forked processes cannot use."""
    shared: Trait | None = None
    """It holds a tensor in memory that processes share."""
    handle: Trait | None = None
    """It holds an open file or connection, which processes cannot share."""
    splits: bool = False
    """It asks which worker it runs in."""
    logs: Trait | None = None
    """It adds to a global that it does not read."""
    effects: Trait | None = None
    """It prints, logs or opens files."""
    given: Trait | None = None
    """It changes what it is given in place."""
    caches: Trait | None = None
    """It calls something that remembers results where they cannot be seen."""
    generators: list[Any] = field(default_factory=list)
    """Random generators it uses, other than those of modules."""
    roots: list[Any] = field(default_factory=list)
    """The objects inspected."""
    slots: dict[tuple[int, str], StateSlot] = field(default_factory=dict)
    """Globals, class attributes, variables of enclosing functions and defaults its code names."""
    memos: set[str] = field(default_factory=set)
    """Names of containers in which it keeps what it computed."""

    def shares(self, collate: Any) -> Trait | None:
        """What remembers samples that the program may get and change; None: nothing does. What
        torch's own collating makes is new."""
        if collate is torch.utils.data.default_collate:
            return None
        return self.caches or (Trait(TraitKind.USES, min(self.memos)) if self.memos else None)

    def varies(self) -> Variation | None:
        """What may differ between two processes or two times; None if samples are the same."""
        if self.draws:
            return Variation(DataChange.DRAWS, because=self.draws)
        if self.unknown:
            return Variation(DataChange.DRAWS, certain=False, because=self.unknown)
        if self.keeps:
            return Variation(DataChange.SAMPLES, certain=False, because=self.keeps)
        return None


def dataset_traits(*things: Any, put_back: type | None = None) -> DatasetTraits:
    """Inspect things and all they hold and call. Setting attributes of objects of class `put_back`
    is not a change: the caller restores them."""
    walker = _CodeWalker(put_back)
    walker.traits.roots += things
    try:
        for thing in things:
            walker.visit(thing)
        walker.finish()
    except Exception as problem:
        walker.note("unknown", TraitKind.UNREADABLE, repr(problem))
    return walker.traits


_PLAIN: Final = (type(None), bool, int, float, complex, bytes, bytearray, range, slice)
_FEW: Final = 64
_MOST: Final = 20_000
_MOST_CODE: Final = 3000
_CALLED_SILENTLY: Final = ("__call__", "__getitem__", "__getitems__", "__iter__", "forward")
_BUILDING: Final = ("__init__", "__new__", "__post_init__")  # these set attributes of new objects
_CONTAINERS: Final = (list, dict, set, deque, bytearray)
_EFFECTS: Final = (print, open, input)
_SHOWN_FILES: Final = 64
_NOT_CALLED: Final = word_set(
    "__init__ __new__ __repr__ __str__ __del__ __getstate__ __setstate__ __reduce__"
    " __reduce_ex__ __init_subclass__ __class_getitem__ __copy__ __deepcopy__ __dir__"
    " __sizeof__ __add__ __radd__ __or__"
)


class _CodeWalker:
    """Walks objects, what they hold, and the code of their classes."""

    def __init__(self, put_back: type | None) -> None:
        self.traits = DatasetTraits()
        self._put_back = put_back
        self._logs: dict[tuple[int, str], Trait] = {}
        self._reads: set[tuple[int, str]] = set()
        self._called: list[tuple[str, Trait]] = []
        self._parts: list[Any] = []
        self._visited: dict[int, Any] = {}  # kept, so that ids stay theirs
        self._names: set[str] = set(_CALLED_SILENTLY)
        self._classes: dict[type, None] = {}
        self._built: set[type] = set()
        self._read: set[Any] = set()

    def note(
        self, kind: str, what: TraitKind, code: str | None = None, place: SourceLine | None = None
    ) -> None:
        """Record a trait in the field `kind`; the first of a kind stays."""
        if getattr(self.traits, kind) is None:
            setattr(self.traits, kind, Trait(what, code, place))

    def visit(self, thing: Any, name: str = "", place: SourceLine | None = None) -> None:
        """Look at an object and, in turn, at those it holds; `name`: as code at `place` has it."""
        if isinstance(thing, _PLAIN) or id(thing) in self._visited:
            return
        if len(self._visited) > _MOST:
            self.note("unknown", TraitKind.TOO_LARGE)
            return
        self._visited[id(thing)] = thing
        kind = type(thing)
        if isinstance(thing, str):
            if thing.startswith("cuda"):
                self.note("cuda", TraitKind.NAMES_GPU, thing)
        elif isinstance(thing, (list, tuple, set, frozenset, deque, dict)):
            self._all(thing.values() if isinstance(thing, dict) else thing)
        elif isinstance(thing, MethodType):
            self.visit(thing.__self__)
            self._callable(thing.__func__, name, place)
        elif kind.__name__ == "_lru_cache_wrapper":
            self.note("caches", TraitKind.USES, getattr(thing, "__name__", None), place)
            self.function(thing)
        elif isinstance(thing, partial):
            self._all((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, (BuiltinFunctionType, FunctionType, type, ModuleType)):
            self._callable(thing, name or getattr(thing, "__name__", ""), place)
        elif is_generator(kind):
            self.traits.generators.append(thing)
            self.note("draws", TraitKind.HOLDS, kind.__name__)
        elif not self._known(thing, kind):
            self._instance(thing, kind)

    def _all(self, things: Iterable[Any]) -> None:
        """Visit the first of many, assuming the rest are alike."""
        for thing in islice(iter(things), _FEW):
            self.visit(thing)

    def _callable(self, function: Any, name: str, place: SourceLine | None) -> None:
        if isinstance(function, FunctionType) and not is_trusted(function):
            self.function(function)
        else:
            self.refer(function, name, place)

    def _known(self, thing: Any, kind: type) -> bool:
        """Whether a thing is of a known kind that needs no inspection."""
        module = module_of(kind)
        top = module.split(".")[0]
        library = top.lstrip("_") if top.lstrip("_") in HANDLES else None
        if isinstance(thing, io.IOBase) and not isinstance(thing, (io.BytesIO, io.StringIO)):
            library = "io"
        if library is not None and module != "h5py._hl.attrs":
            self.note("handle", TraitKind.OPEN_FILE, library)
        elif module.startswith("multiprocessing.") and not module.endswith("sharedctypes"):
            if kind.__name__ not in ("Lock", "RLock"):
                self.note("keeps", TraitKind.SHARED, kind.__name__)
        elif isinstance(thing, logging.Logger):
            self.note("effects", TraitKind.WRITES, thing.name)
        elif isinstance(thing, Iterator):
            self.note("keeps", TraitKind.ITERATES, kind.__name__)
        elif hasattr(kind, "is_cuda") and hasattr(kind, "untyped_storage"):
            if thing.is_cuda:
                self.note("cuda", TraitKind.HOLDS_GPU_TENSORS)
            elif is_shared(thing):
                self.note("shared", TraitKind.HOLDS, "shared tensor")
        elif module == "torch" and kind.__name__ == "device":
            if thing.type == "cuda":
                self.note("cuda", TraitKind.NAMES_GPU)
        elif top == "numpy":
            if getattr(getattr(thing, "dtype", None), "hasobject", False):
                self._all(thing.flat)
        elif top == "datasets" and hasattr(thing, "_format_kwargs"):
            self.visit(thing._format_kwargs)  # its table is data; a function set on it is code
        elif not is_trusted(kind) or top in ("torch", "transformers"):
            return False
        return True

    def _instance(self, thing: Any, kind: type) -> None:
        module = module_of(kind)
        if module.startswith("torch.nn."):
            if draws_in_torch(kind.__name__):
                self.note("draws", TraitKind.HOLDS, kind.__name__)
            elif not module.endswith("container"):
                self.note("sums", TraitKind.RUNS, kind.__name__)
        elif module.startswith("torch.distributions"):
            self.note("draws", TraitKind.HOLDS, kind.__name__)
        elif module.startswith("torch.utils.data.datapipes"):
            self.note("unknown", TraitKind.UNKNOWN_CLASS, kind.__name__)
        self.adopt(kind)
        if hasattr(thing, "__dict__"):
            self._parts.append(thing)
            for value in list(vars(thing).values()):
                self.visit(value)
        for base in kind.__mro__:
            for name in getattr(base, "__slots__", ()):
                self.visit(getattr(thing, name, None))

    def finish(self) -> None:
        """Follow calls until no new code turns up."""
        seen: set[tuple[type, str]] = set()
        while True:
            new = [
                (cls, name)
                for cls in self._classes
                for name in vars(cls)
                if (cls, name) not in seen and self._reachable(cls, name)
            ]
            if not new:
                break
            seen.update(new)
            for cls, name in new:
                self._method(cls, vars(cls)[name])
        for key, trait in self._logs.items():
            if key in self._reads:
                self.traits.keeps = self.traits.keeps or trait
            else:
                self.traits.slots.pop(key, None)
                self.traits.logs = self.traits.logs or trait
        for text, trait in self._called:
            if self._is_container(text):
                self.traits.keeps = self.traits.keeps or trait

    def _is_container(self, text: str) -> bool:
        """Whether `self.items` in code is a container; assumed for other names."""
        owner, _, name = text.partition(".")
        if owner != "self" or "." in name:
            return True
        held = [vars(part)[name] for part in self._parts if name in vars(part)]
        if self._put_back is not None:
            buffers = any(name in vars(part).get("_buffers", ()) for part in self._parts)
            others = [value for value in held if not hasattr(value, "untyped_storage")]
            return bool(others) or not (held or buffers)
        return not held or any(
            isinstance(value, _CONTAINERS) or hasattr(value, "dtype") for value in held
        )

    def adopt(self, cls: type) -> None:
        """Instances of a class exist, so its methods may be called."""
        for base in cls.__mro__:
            if base is not object and not is_trusted(base) and base not in self._classes:
                self._classes.setdefault(base)
                self._class_attributes(base)

    def _class_attributes(self, cls: type) -> None:
        if not is_user_file(getattr(sys.modules.get(cls.__module__), "__file__", None) or ""):
            return
        for name, value in vars(cls).items():
            data = not hasattr(type(value), "__get__") and not isinstance(value, type | CallPoint)
            if data and not name.startswith("__") and name != "_abc_impl":
                text = f"{cls.__qualname__}.{name}"
                self.traits.slots[id(cls), name] = StateSlot(cls, name, text)

    def refer(self, thing: Any, text: str, place: SourceLine | None) -> None:
        """Code names something outside it."""
        if thing is ABSENT:
            self.note("unknown", TraitKind.UNKNOWN_NAME, text, place)
        elif isinstance(thing, ModuleType):
            if thing.__name__ in RANDOM_MODULES:
                self.note("draws", TraitKind.USES, text, place)
        elif isinstance(thing, type):
            known = f"{module_of(thing)}.{thing.__name__}" in RANDOM_TYPES
            of_torch = is_trusted(thing) and module_of(thing).startswith("torch")
            if known or (of_torch and draws_in_torch(thing.__name__)):
                self.note("draws", TraitKind.USES, text, place)
            elif not is_trusted(thing):
                self._built.add(thing)
                self.adopt(thing)
        elif any(thing is effect for effect in _EFFECTS):
            self.note("effects", TraitKind.WRITES, text, place)
        elif isinstance(thing, (BuiltinFunctionType, FunctionType)) and is_trusted(thing):
            self._trusted_call(thing, text, place)
        else:
            self.visit(thing, text, place)

    def function(self, function: Any, cls: type | None = None) -> None:
        """A Python function, and what it wraps, may be called; `cls` has it as a method."""
        layer: Any = function
        while layer is not None:
            if isinstance(layer, FunctionType):
                self._code(layer.__code__, Scope(layer), cls)
                self._defaults(layer)
            layer = getattr(layer, "__wrapped__", None)

    def _defaults(self, function: FunctionType) -> None:
        """Containers among its defaults are the same at every call."""
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        given = function.__defaults__ or ()
        held = dict(zip(names[len(names) - len(given) :], given, strict=False))
        for name, value in (held | (function.__kwdefaults__ or {})).items():
            if isinstance(value, _CONTAINERS) and is_user_code(function.__code__):
                text = f"{function.__qualname__}.{name}"
                self.traits.slots[id(value), name] = StateSlot({name: value}, name, text)

    def _code(self, code: Any, scope: Scope, cls: type | None) -> None:
        if code in self._read:
            return
        if len(self._read) > _MOST_CODE:
            self.note("unknown", TraitKind.TOO_MUCH_CODE)
            return
        self._read.add(code)
        reading = read_code(code, scope)
        self._names |= reading.names.keys()
        file, users = short(code.co_filename), is_user_code(code)
        for chain, text, line in reading.chains:
            place = SourceLine(file, line)
            if users:
                self._named(chain, text, place, scope)
            for thing in chain:
                if thing is not ABSENT or users:  # a library's optional imports do not matter
                    self.refer(thing, text, place)
        for name, line in reading.names.items():
            place = SourceLine(file, line)
            if name in RANDOM_METHODS:
                self.note("draws", TraitKind.USES, name, place)
            elif name in SUMS & reading.calls:
                self.note("sums", TraitKind.USES, name, place)
            elif name == "cuda":
                self.note("cuda", TraitKind.MOVES_TO_GPU, name, place)
        if code.co_name not in _BUILDING:
            self._stores(code, scope, cls)
        if reading.products:
            self.note("sums", TraitKind.USES, "@", SourceLine(file, reading.products))
        if any(text.startswith("cuda") for text in reading.strings) and users:
            self.traits.cuda = self.traits.cuda or Trait(TraitKind.NAMES_GPU, file=file)
        for text in islice(reading.strings if users else (), _SHOWN_FILES):
            if is_path(text) and os.path.exists(text):
                self.traits.slots[id(code), text] = StateSlot({text: text}, text, text)
        for inner in reading.inner:
            self._code(inner, scope, cls)

    def _named(self, chain: list[Any], text: str, place: SourceLine, scope: Scope) -> None:
        """Outside things that code names: their content may determine samples."""
        names = text.split(".")[: len(chain)]
        holders = [scope.holder(names[0]), *chain]
        for holder, name, thing in zip(holders, names, chain, strict=False):
            code = isinstance(thing, (BuiltinFunctionType, FunctionType, type))
            library = isinstance(holder, ModuleType) and holder.__name__ in sys.stdlib_module_names
            if (
                holder is None
                or isinstance(holder, type)
                or isinstance(thing, ModuleType)
                or (code and is_trusted(thing))
                or (library and thing is not os.environ)
            ):
                continue
            slot = StateSlot(holder, name, text, place)
            self.traits.slots.setdefault((id(holder), name), slot)

    def _stores(self, code: Any, scope: Scope, cls: type | None) -> None:
        """What code changes outside itself."""
        found, file = read_stores(code), short(code.co_filename)

        def seen(text: str, line: int) -> Trait:
            return Trait(TraitKind.SETS, text, SourceLine(file, line))

        if code.co_name == "__len__":  # a length that is counted once
            self.traits.memos |= {text.rpartition(".")[2] for text in found.attributes}
            found.attributes.clear()
        known = self._put_back is not None and cls is not None and issubclass(cls, self._put_back)
        for text, line in (found.others if known else found.attributes | found.others).items():
            self.traits.keeps = self.traits.keeps or seen(text, line)
        self._called += [(text, seen(text, line)) for text, line in found.called.items()]
        for text, line in found.given.items():
            self.traits.given = self.traits.given or seen(text, line)
        for text, line in found.logs.items():
            self._logs.setdefault((id(scope.holder(text)), text), seen(text, line))
        self._reads |= {(id(scope.holder(text)), text) for text in found.reads}
        self.traits.memos |= found.memos

    def _trusted_call(self, function: Any, text: str, place: SourceLine | None) -> None:
        name = getattr(function, "__name__", "")
        owner = type(getattr(function, "__self__", None))
        if module_of(function) in RANDOM_MODULES or is_generator(owner):
            self.note("draws", TraitKind.USES, text, place)
        elif name == "get_worker_info":
            self.traits.splits = True
        elif name in ("eval", "exec", "__import__"):
            self.note("unknown", TraitKind.UNKNOWN_NAME, text, place)
        elif (module_of(function) or "torch").startswith("torch"):
            if draws_in_torch(name):
                self.note("draws", TraitKind.USES, text, place)
            elif name in SUMS:
                self.note("sums", TraitKind.USES, text, place)

    def _reachable(self, cls: type, name: str) -> bool:
        if name in self._names:
            return True
        if not (name.startswith("__") and name.endswith("__")):
            return False
        return name not in _NOT_CALLED or (name in ("__init__", "__new__") and cls in self._built)

    def _method(self, cls: type, found: Any) -> None:
        own = found.own if isinstance(found, CallPoint) else found
        if isinstance(own, cached_property) and own.attrname:
            self.traits.memos.add(own.attrname)
        behind = ("fget", "func", "__func__")  # of properties, cached properties, class methods
        for part in (own, *(getattr(own, name, None) for name in behind)):
            if isinstance(part, FunctionType) or hasattr(part, "__wrapped__"):
                self.function(part, cls)
        if type(found).__name__ in ("builtin_function_or_method", "method_descriptor"):
            self.note("unknown", TraitKind.UNKNOWN_CLASS, cls.__qualname__)


def is_generator(owner: type) -> bool:
    """Whether objects of a class draw random numbers."""
    return any(f"{module_of(base)}.{base.__name__}" in RANDOM_TYPES for base in owner.__mro__)
