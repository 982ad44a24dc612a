"""A profiler of the program starts: torch records for one at a time, so our window ends before."""

import functools
import sys
from typing import Any

import torch
from torch.autograd import profiler, profiler_legacy

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches
from stepscope.probe.window import OWN_PROFILER, PYTHON_PROFILER

_METHODS = ("_prepare_trace", "_start_trace")
_RANGES = (profiler.emit_nvtx, profiler.emit_itt)
_FUNCTIONS = ("_prepare_profiler", "_enable_profiler", "_enable_profiler_legacy")
_MODULES = (torch._C._autograd, torch.autograd, profiler_legacy)


class _StartPoint:
    """In place of a method that starts recording, unless that is turned off. It acts as the method
    is looked up: a frame of ours beneath it would be recorded as a caller of all that follows."""

    def __init__(self, core: Core, original: Any, why: str = OWN_PROFILER) -> None:
        self._core = core
        self._original = original
        self._why = why

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is not None and getattr(instance, "enabled", True):
            _give_way(self._core, self._why)
        return self._original.__get__(instance, owner)


def _give_way(core: Core, why: str = OWN_PROFILER) -> None:
    try:
        if not core.log.observing:  # it is not ours
            core.sampler.stop()
        core.window.give_way(why)
    except Exception as problem:
        core.guard(problem)


def _guard_stacks(core: Core) -> Patches:
    """Patch what sets a profile function, while torch records Python stacks by one: two at a time
    crash, and within an audit hook none can be removed."""
    patches = Patches()
    call = _StartPoint(core, staticmethod(sys.setprofile), PYTHON_PROFILER)
    patches.set(sys, "setprofile", type("setprofile", (), {"__call__": call})())
    if (module := sys.modules.get("cProfile")) is not None:
        point = _StartPoint(core, module.Profile.enable, PYTHON_PROFILER)
        patches.set(module.Profile, "enable", point)
    return patches


def patch_profilers(core: Core, patches: Patches) -> None:
    """Patch what torch's profilers start recording with, wherever it is known by name."""
    if core.window.done and core.sampler.done:
        return
    core.window.guard_stacks = functools.partial(_guard_stacks, core)

    def giving_way(original: Any) -> Any:
        @functools.wraps(original)
        def start(*args: Any, **kwargs: Any) -> Any:
            _give_way(core)
            return original(*args, **kwargs)

        return start

    for name in _METHODS:
        patches.set(profiler.profile, name, _StartPoint(core, vars(profiler.profile)[name]))
    for ranges in _RANGES:
        patches.set(ranges, "__enter__", _StartPoint(core, ranges.__enter__))
    for module in _MODULES:
        for name in _FUNCTIONS:
            if name in vars(module):
                patches.set(module, name, giving_way(vars(module)[name]))
