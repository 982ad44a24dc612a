"""What can be told of a dataset, collate function or sampler without running it: whether it draws
random numbers, keeps state, holds CUDA tensors or open files.

Calls on things known only at run time are followed by name: any object met whose class has a
method of that name is taken to be meant. So more code is looked at than will run, never less.
"""

import io
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from stepscope.fixes.inspect.dataset_code import (
    ABSENT,
    HANDLES,
    RANDOM_METHODS,
    RANDOM_MODULES,
    RANDOM_TYPES,
    SUMS,
    draws_in_torch,
    is_trusted,
    module_of,
    read_code,
    scope_of,
    word_set,
)
from stepscope.fixes.inspect.tensors import tensor_version
from stepscope.fixes.inspect.user_code import short_path as short
from stepscope.probe.dataclock.points import CallPoint
from stepscope.probe.sites import is_user_code
from stepscope.record.fix import DataChange, SourceLine, Trait, TraitKind, Variation


@dataclass(slots=True)
class _DatasetTraits:
    """The first thing seen of each kind; None where nothing of the kind was."""

    draws: Trait | None = None
    """It draws random numbers."""
    unknown: Trait | None = None
    """Something in it could not be looked through."""
    keeps: Trait | None = None
    """It changes itself from one sample to the next. A dictionary it fills is taken for a memo, a
    global list it adds to for a log."""
    sums: Trait | None = None
    """It adds up tensors, which rounds otherwise with another number of threads."""
    cuda: Trait | None = None
    """It holds or makes things on the GPU, which forked processes cannot use."""
    handle: Trait | None = None
    """It holds an open file or connection, which processes cannot share."""
    splits: bool = False
    """It asks which worker it runs in."""
    parts: list[Any] = field(default_factory=list)
    """Objects it consists of whose attributes the program may set."""

    def varies(self) -> Variation | None:
        """What two processes, or two times, may give otherwise; None where samples are the same."""
        if self.draws:
            return Variation(DataChange.DRAWS, because=self.draws)
        if self.unknown:
            return Variation(DataChange.DRAWS, certain=False, because=self.unknown)
        if self.keeps:
            return Variation(DataChange.SAMPLES, certain=False, because=self.keeps)
        return None


def dataset_traits(*things: Any) -> _DatasetTraits:
    """Look through things and all they hold and call."""
    walker = _CodeWalker()
    try:
        for thing in things:
            walker.visit(thing)
        walker.finish()
    except Exception as problem:
        walker.note("unknown", TraitKind.UNREADABLE, repr(problem))
    return walker.traits


class AttributeChanges:
    """Notices when the program sets attributes of a dataset or of anything it consists of."""

    def __init__(self, parts: list[Any]) -> None:
        self._state = [
            (part, {name: (value, _inside(value)) for name, value in vars(part).items()})
            for part in parts
        ]
        """Values are kept too, so that their ids stay theirs."""

    def any(self) -> bool:
        """Whether something was set, or a tensor changed in place, since this was made."""
        return any(
            vars(part).keys() != before.keys()
            or any(_differs(value, *before[name]) for name, value in vars(part).items())
            for part, before in self._state
        )


_SMALL = 64


def _inside(value: Any) -> Any:
    """What to compare of a value besides its identity."""
    if type(value) in (list, dict):
        held = value.values() if type(value) is dict else value
        return list(map(id, held)) if len(value) <= _SMALL else len(value)
    return tensor_version(value) if hasattr(type(value), "untyped_storage") else None


def _differs(value: Any, old: Any, inside: Any) -> bool:
    if value is old:
        return bool(_inside(value) != inside)
    comparable = isinstance(value, (int, float, str)) and type(value) is type(old)
    return not comparable or bool(value != old)


_PLAIN: Final = (type(None), bool, int, float, complex, bytes, bytearray, range, slice)
_FEW: Final = 64
_MOST: Final = 20_000
_MOST_CODE: Final = 3000
_CALLED_SILENTLY: Final = ("__call__", "__getitem__", "__getitems__", "__iter__", "forward")
_BUILDING: Final = ("__init__", "__new__", "__post_init__")  # what these set is new
_NOT_CALLED: Final = word_set(
    "__init__ __new__ __repr__ __str__ __del__ __getstate__ __setstate__ __reduce__"
    " __reduce_ex__ __init_subclass__ __class_getitem__ __copy__ __deepcopy__ __dir__"
    " __sizeof__ __add__ __radd__ __or__"
)


class _CodeWalker:
    """Goes through objects, what they hold, and the code of their classes."""

    def __init__(self) -> None:
        self.traits = _DatasetTraits()
        self._visited: dict[int, Any] = {}  # kept, so that ids stay theirs
        self._names: set[str] = set(_CALLED_SILENTLY)
        self._classes: dict[type, None] = {}
        self._built: set[type] = set()
        self._read: set[Any] = set()

    def note(
        self, kind: str, what: TraitKind, code: str | None = None, place: SourceLine | None = None
    ) -> None:
        """Something was seen, `kind` being a field of the traits: the first of a kind stays."""
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
            self.function(thing)
        elif isinstance(thing, partial):
            self._all((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, (BuiltinFunctionType, FunctionType, type, ModuleType)):
            self._callable(thing, name or getattr(thing, "__name__", ""), place)
        elif _random(kind):
            self.note("draws", TraitKind.HOLDS, kind.__name__)
        elif not self._known(thing, kind):
            self._instance(thing, kind)

    def _all(self, things: Iterable[Any]) -> None:
        """The first of many are taken to be like the rest."""
        for thing in islice(iter(things), _FEW):
            self.visit(thing)

    def _callable(self, function: Any, name: str, place: SourceLine | None) -> None:
        if isinstance(function, FunctionType) and not is_trusted(function):
            self.function(function)
        else:
            self.refer(function, name, place)

    def _known(self, thing: Any, kind: type) -> bool:
        """Things of which it is known what they are: nothing in them needs to be looked at."""
        module = module_of(kind)
        top = module.split(".")[0]
        library = top.lstrip("_") if top.lstrip("_") in HANDLES else None
        if isinstance(thing, io.IOBase) and not isinstance(thing, (io.BytesIO, io.StringIO)):
            library = "io"
        if library is not None and module != "h5py._hl.attrs":
            self.note("handle", TraitKind.OPEN_FILE, library)
        elif isinstance(thing, Iterator):
            self.note("keeps", TraitKind.ITERATES, kind.__name__)
        elif hasattr(thing, "is_cuda") and hasattr(thing, "untyped_storage"):
            if thing.is_cuda:
                self.note("cuda", TraitKind.HOLDS_GPU_TENSORS)
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
            self.traits.parts.append(thing)
            for value in list(vars(thing).values()):
                self.visit(value)
        for base in kind.__mro__:
            for name in getattr(base, "__slots__", ()):
                self.visit(getattr(thing, name, None))

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
            seen.update(new)
            for cls, name in new:
                self._method(cls, vars(cls)[name])

    def adopt(self, cls: type) -> None:
        """Instances of a class are there: its methods may be called."""
        for base in cls.__mro__:
            if base is not object and not is_trusted(base):
                self._classes.setdefault(base)

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
        elif isinstance(thing, (BuiltinFunctionType, FunctionType)) and is_trusted(thing):
            self._trusted_call(thing, text, place)
        else:
            self.visit(thing, text, place)

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
            self.note("unknown", TraitKind.TOO_MUCH_CODE)
            return
        self._read.add(code)
        reading = read_code(code, scope)
        self._names |= reading.names.keys()
        file, users = short(code.co_filename), is_user_code(code)
        for chain, text, line in reading.chains:
            for thing in chain:
                if thing is not ABSENT or users:  # a library's own optional imports are its affair
                    self.refer(thing, text, SourceLine(file, line))
        for name, line in reading.names.items():
            place = SourceLine(file, line)
            if name in RANDOM_METHODS:
                self.note("draws", TraitKind.USES, name, place)
            elif name in SUMS & reading.calls:
                self.note("sums", TraitKind.USES, name, place)
            elif name == "cuda":
                self.note("cuda", TraitKind.MOVES_TO_GPU, name, place)
        for name, line in () if code.co_name in _BUILDING else reading.sets.items():
            self.note("keeps", TraitKind.SETS, name, SourceLine(file, line))
        if reading.products:
            self.note("sums", TraitKind.USES, "@", SourceLine(file, reading.products))
        if any(text.startswith("cuda") for text in reading.strings) and users:
            self.traits.cuda = self.traits.cuda or Trait(TraitKind.NAMES_GPU, file=file)
        for inner in reading.inner:
            self._code(inner, scope)

    def _trusted_call(self, function: Any, text: str, place: SourceLine | None) -> None:
        name = getattr(function, "__name__", "")
        owner = type(getattr(function, "__self__", None))
        if module_of(function) in RANDOM_MODULES or _random(owner):
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
        behind = ("fget", "func", "__func__")  # of properties, cached properties, class methods
        for part in (own, *(getattr(own, name, None) for name in behind)):
            if isinstance(part, FunctionType) or hasattr(part, "__wrapped__"):
                self.function(part)
        if type(found).__name__ in ("builtin_function_or_method", "method_descriptor"):
            self.note("unknown", TraitKind.UNKNOWN_CLASS, cls.__qualname__)


def _random(owner: type) -> bool:
    return any(f"{module_of(base)}.{base.__name__}" in RANDOM_TYPES for base in owner.__mro__)
