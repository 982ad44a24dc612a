"""Lazily imported modules, which a fix needs only in the program's process or only to predict: the
parent lists fixes without importing torch."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["changes", "tasks", "torch", "unseen"]

if TYPE_CHECKING:
    import torch

    from stepscope.analyze.replay import changes, tasks
    from stepscope.probe import unseen
else:

    class _Lazy:
        __slots__ = ("_name",)  # so that nobody patches this in place of the module

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(sys.modules.get(self._name) or import_module(self._name), name)

    torch = _Lazy("torch")
    changes = _Lazy("stepscope.analyze.replay.changes")
    tasks = _Lazy("stepscope.analyze.replay.tasks")
    unseen = _Lazy("stepscope.probe.unseen")
