"""Observing switched on and off at a step's border, as often as one likes.

One observer lives through the whole process, so what is measured is its steady state. "Off" means
that everything it put into torch is out again, which is checked.
"""

from pathlib import Path
from time import monotonic_ns
from types import FunctionType
from typing import Any

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from torch.utils.data._utils import fetch, worker

from stepscope.probe.observer import Observer
from stepscope.probe.patches import _ABSENT, ImportWatch
from stepscope.record.probe_options import ProbeOptions

_PROBE = str(Path("stepscope", "probe"))
_NEVER = 1 << 60  # the step of a recording that only `record` asks for
_TRACES = ("window.pt.trace.json", "stacks.pt.trace.json")
_HOOKS = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
_PATCHED = (
    torch,
    torch.autograd,
    torch.cuda,
    torch.Tensor,
    torch.nn.Module,
    torch.nn.utils,
    torch.optim.Optimizer,
    torch.amp.GradScaler,
    torch.cuda.CUDAGraph,
    torch.cuda.Event,
    torch.cuda.Stream,
    dataloader.DataLoader,
    dataloader._BaseDataLoaderIter,
    fetch._BaseDatasetFetcher,
    fetch._MapDatasetFetcher,
    fetch._IterableDatasetFetcher,
    worker,
)


class Switch:
    """The real observer of this process. It is on once made."""

    def __init__(self, model: Any, folder: Path, overhead: float | None) -> None:
        self._owners = {*_PATCHED, *(type(module) for module in model.modules())}
        launched_ns = monotonic_ns()
        self._watch = ImportWatch(launched_ns)
        self._folder = folder
        self.observer = Observer(
            ProbeOptions(str(folder), launched_ns, window_at=_NEVER, overhead=overhead)
        )
        self.observer.install(self._watch)
        self._watch.install()
        window = self.observer.core.window
        self._plans = list(window._plans)
        window._plans.clear()
        self._held: list[tuple[Any, str, Any]] = []
        self._hooks: list[dict[int, Any]] = [{}, {}]
        self._is_on = True

    @property
    def steps(self) -> int:
        """Steps seen so far. Raises when observing has failed: there is nothing to measure then."""
        core = self.observer.core
        if core.log.off:
            raise RuntimeError("the observer has switched itself off")
        if core.clocks is not None:
            core.clocks.settle()
        return core.steps

    def turn(self, on: bool) -> None:
        """Turn observing to the other state and then to `on`, so that every block begins alike."""
        for state in (not on, on):
            if state and not self._is_on:
                self._put_back()
            elif not state and self._is_on:
                self._take_out()
            self._is_on = state

    def record(self) -> None:
        """Have the next steps recorded as a run's first ones are: kernels, then Python stacks."""
        self.turn(on=True)
        core = self.observer.core
        core.window._plans.extend(self._plans)
        core.window._at = core.steps + 1
        core._recording = True
        if core.clocks is not None:
            core.clocks.occasion()

    def has_recorded(self) -> bool:
        """Whether that has come to its end. Raises where a trace of it is missing."""
        if not self.observer.core.window.done:
            return False
        for name in _TRACES:
            try:
                (self._folder / name).unlink()
            except FileNotFoundError:
                raise RuntimeError(f"{name} was not recorded") from None
        return True

    def end(self) -> None:
        """End observing for good."""
        self.turn(on=True)
        self.observer.end()
        self._check_bare()

    def _take_out(self) -> None:
        every = self.observer._patches, self.observer._clocked, self.observer._clock.patches
        saved = [one for patches in every for one in patches._saved]
        places = dict.fromkeys((owner, name) for owner, name, *_ in saved)
        self._held = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name in places]
        for owner, name, original, _ in reversed(saved):
            if original is not _ABSENT:
                setattr(owner, name, original)
            elif name in vars(owner):
                delattr(owner, name)
        self._hooks = [dict(hooks) for hooks in _HOOKS]
        for hooks in _HOOKS:
            hooks.clear()
        self._watch.remove()
        self._check_bare()

    def _put_back(self) -> None:
        for owner, name, value in self._held:
            if value is not _ABSENT:
                setattr(owner, name, value)
        for hooks, kept in zip(_HOOKS, self._hooks, strict=True):
            hooks.update(kept)
        self._watch.install()

    def _check_bare(self) -> None:
        """Raise where a function of the classes and modules looked at is one of ours."""
        for owner in self._owners:
            for name, value in list(vars(owner).items()):
                if _is_ours(value):
                    raise RuntimeError(f"{owner.__name__}.{name} is still patched: off is not bare")
        if any(_HOOKS):
            raise RuntimeError("an optimizer hook is left: off is not bare")


def _is_ours(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return _PROBE in value.__code__.co_filename
    return type(value).__module__.startswith("stepscope.")
