"""What every program of `wild.py` finds in its interpreter, bare and observed alike: random
generators seeded as they are imported, so that runs repeat, and torchvision datasets that accept
generated files in place of downloads."""

import importlib.abc
import importlib.util
import os
import random
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_SEED = 20


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, then calls a function with it."""

    def __init__(self, own: Any, then: Callable[[Any], None]) -> None:
        self._own, self._then = own, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds each of its modules once, by asking the others."""

    def __init__(self, then: dict[str, Callable[[Any], None]]) -> None:
        self._then = then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        then = self._then.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, then)
        return spec


def _seed_torch(torch: Any) -> None:
    torch.manual_seed(_SEED)


def _seed_numpy(numpy: Any) -> None:
    numpy.random.seed(_SEED)


def _accept_generated(module: Any) -> None:
    module.check_integrity = lambda path, md5=None: os.path.isfile(path)


random.seed(_SEED)
sys.meta_path.insert(
    0,
    _Finder(
        {
            "torch": _seed_torch,
            "numpy": _seed_numpy,
            "torchvision.datasets.cifar": _accept_generated,
        }
    ),
)
