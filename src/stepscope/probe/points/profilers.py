"""A profiler of the program starts: torch records for one at a time, so our window ends before."""

import functools
from typing import Any

import torch
from torch.autograd import profiler, profiler_legacy

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches

_STARTS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_MODULES = (torch._C._autograd, torch.autograd, profiler, profiler_legacy)


def patch_profilers(core: Core, patches: Patches) -> None:
    """Patch what torch's profilers start recording with, wherever it is known by name."""
    window = core.window
    if window.done:
        return

    def giving_way(original: Any) -> Any:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            try:
                window.give_way()
            except Exception as problem:
                core.guard(problem)
            return original(*args, **kwargs)

        return start

    for module in _MODULES:
        for name in _STARTS:
            if name in vars(module):
                patches.set(module, name, giving_way(vars(module)[name]))
