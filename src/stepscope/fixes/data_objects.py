"""The objects a dataset consists of, one by one: what kind of thing each is."""

import io
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from stepscope.fixes.data_look import Look
from stepscope.fixes.data_names import HANDLES, RANDOM_TYPES, draws_in_torch, module_of, trusted

_PLAIN: Final = (type(None), bool, int, float, complex, bytes, bytearray, range, slice)
_FEW: Final = 64
_MOST: Final = 20_000


class Visits:
    """Goes through objects and what they hold; `adopt` and `refer` look at code."""

    def __init__(self, look: Look) -> None:
        self.look = look
        self._visited: dict[int, Any] = {}  # kept, so that ids stay theirs

    def say(self, field: str, reason: str) -> None:
        """Note a reason; the first of its kind stays."""
        if getattr(self.look, field) is None:
            setattr(self.look, field, reason)

    def adopt(self, cls: type) -> None:
        """Instances of a class are there."""
        raise NotImplementedError

    def refer(self, thing: Any, text: str, where: str) -> None:
        """Code names something outside it."""
        raise NotImplementedError

    def function(self, function: Any) -> None:
        """A Python function may be called."""
        raise NotImplementedError

    def visit(self, thing: Any, name: str = "") -> None:
        """Look at an object and, in turn, at those it holds."""
        if isinstance(thing, _PLAIN) or id(thing) in self._visited:
            return
        if len(self._visited) > _MOST:
            self.say("unknown", "it is too large to look through")
            return
        self._visited[id(thing)] = thing
        kind = type(thing)
        if isinstance(thing, str):
            if thing.startswith("cuda"):
                self.say("cuda", f"names the GPU ({thing!r})")
        elif isinstance(thing, (list, tuple, set, frozenset, deque, dict)):
            self._all(thing.values() if isinstance(thing, dict) else thing)
        elif isinstance(thing, (BuiltinFunctionType, FunctionType)):
            self._callable(thing, name or f"`{getattr(thing, '__name__', '')}`")
        elif isinstance(thing, MethodType):
            self.visit(thing.__self__)
            self._callable(thing.__func__, name)
        elif kind.__name__ == "_lru_cache_wrapper":
            self.function(thing)
        elif isinstance(thing, partial):
            self._all((thing.func, thing.args, thing.keywords))
        elif isinstance(thing, (type, ModuleType)):
            self.refer(thing, getattr(thing, "__name__", ""), name or "the dataset")
        elif any((module_of(base), base.__name__) in RANDOM_TYPES for base in kind.__mro__):
            self.say("draws", f"it holds a {kind.__name__}")
        elif not self._known(thing, kind):
            self._instance(thing, kind)

    def _all(self, things: Iterable[Any]) -> None:
        """The first of many are taken to be like the rest."""
        for thing in islice(iter(things), _FEW):
            self.visit(thing)

    def _callable(self, function: Any, name: str) -> None:
        if isinstance(function, FunctionType) and not trusted(function):
            self.function(function)
        else:
            self.refer(function, name.strip("`"), "the dataset")

    def _known(self, thing: Any, kind: type) -> bool:
        """Things of which it is known what they are: nothing in them needs to be looked at."""
        module = module_of(kind)
        top = module.split(".")[0]
        what = HANDLES.get(top.lstrip("_"))
        if isinstance(thing, io.IOBase) and not isinstance(thing, (io.BytesIO, io.StringIO)):
            what = "an open file"
        if what is not None and module != "h5py._hl.attrs":
            self.say("handle", what)
        elif isinstance(thing, Iterator):
            self.say("keeps", f"it holds a {kind.__name__}, which goes on from sample to sample")
        elif hasattr(thing, "is_cuda") and hasattr(thing, "untyped_storage"):
            if thing.is_cuda:
                self.say("cuda", "holds tensors on the GPU")
        elif module == "torch" and kind.__name__ == "device":
            if thing.type == "cuda":
                self.say("cuda", "names the GPU")
        elif top == "numpy":
            if getattr(getattr(thing, "dtype", None), "hasobject", False):
                self._all(thing.flat)
        elif top == "datasets" and hasattr(thing, "_format_kwargs"):
            self.visit(thing._format_kwargs)  # its table is data; a function set on it is code
        elif not trusted(kind) or top in ("torch", "transformers"):
            return False
        return True

    def _instance(self, thing: Any, kind: type) -> None:
        module = module_of(kind)
        if module.startswith("torch.nn."):
            if draws_in_torch(kind.__name__):
                self.say("draws", f"it holds a {kind.__name__}")
            elif not module.endswith("container"):
                self.say("sums", f"it runs a {kind.__name__}")
        elif module.startswith("torch.distributions"):
            self.say("draws", f"it holds a {kind.__name__}")
        elif module.startswith("torch.utils.data.datapipes"):
            self.say("unknown", f"what {kind.__name__} does is not known")
        self.adopt(kind)
        if hasattr(thing, "__dict__"):
            self.look.parts.append(thing)
            self._all_attributes(vars(thing))
        slots = (name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))
        for name in slots:
            self.visit(getattr(thing, name, None))

    def _all_attributes(self, attributes: dict[str, Any]) -> None:
        for value in list(attributes.values()):
            self.visit(value)
