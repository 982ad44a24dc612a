"""What a proof compares besides losses: gradient norms, learning rates, loads.

Nothing waits for the device. Lists count from the first step; None: not known, as for a step that
was left out, or one inside a CUDA graph.
"""

import functools
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from stepscope.probe.core import Core
from stepscope.probe.held import HeldDraws
from stepscope.probe.patches import Patches
from stepscope.probe.proof_norm import squared_norm
from stepscope.probe.proof_outputs import Outputs

_NORMS = 3
_WRITTEN_EVERY = 50


class ProofRecorder:
    """Keeps it, and writes it as fact `proof` now and then and at the end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._norms: list[float | None] = []
        self._rates: list[float | None] = []
        self._loads: list[int] = []
        self._squares: list[Any] = []  # of the step under way, one for each optimizer
        self._rate: Any = None
        self._steps = 0
        self._norms_wanted = _NORMS
        self._held = HeldDraws(core.options.seed or 0) if core.options.held else None

    def install(self, patches: Patches) -> None:
        """Take hold of optimizers, loading and root models."""
        core = self._core
        before = register_optimizer_step_pre_hook(self._before)
        after = register_optimizer_step_post_hook(self._after)
        core.on_end.extend([before.remove, after.remove, self._write])
        core.on_step.append(self._step_ended)
        for owner, name in (
            (torch, "load"),
            (torch.nn.Module, "load_state_dict"),
            (torch.optim.Optimizer, "load_state_dict"),
        ):
            patches.set(owner, name, self._watched(getattr(owner, name)))
        Outputs(core).install()
        if self._held is not None:
            self._held.install(patches)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step begins. One that is given a closure computes its gradients only inside."""
        if self._ignored():
            return
        if self._rate is None and optimizer.param_groups:
            self._rate = _kept(optimizer.param_groups[0].get("lr"))
        if not _closure(args, kwargs):
            self._add(optimizer)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._ignored() and _closure(args, kwargs):
            self._add(optimizer)

    def _ignored(self) -> bool:
        core = self._core
        return (core.compiles and is_compiling()) or core.log.off or core.device.capturing

    def _add(self, optimizer: Any) -> None:
        if self._steps >= self._norms_wanted:
            return
        try:
            square = squared_norm(optimizer)
        except Exception as problem:
            self._core.facts.write("problem", text=f"no gradient norm: {problem!r}")
            self._norms_wanted = 0
            return
        if square is not None:
            self._squares.append(square)

    def _step_ended(self, step: int) -> int:
        """Settle the step. Those of a program in which no optimizer steps have nothing of it."""
        if self._core.stepping:
            self._settle(step)
        return step + 1

    def _settle(self, step: int) -> None:
        self._steps = step
        self._rates += [None] * (step - len(self._rates))
        self._keep(self._rate, self._rates, step)
        if step <= self._norms_wanted:
            self._norms += [None] * (step - len(self._norms))
            if self._squares:
                first = self._squares[0]
                squares = [square.to(first.device) for square in self._squares]
                self._keep(torch.stack(squares).sum().sqrt(), self._norms, step)
        self._squares.clear()
        self._rate = None
        if step % _WRITTEN_EVERY == 0:
            self._write()

    def _keep(self, value: Any, values: list[float | None], step: int) -> None:
        """Put a number at its step's place, once it is known."""
        if isinstance(value, torch.Tensor):
            put = functools.partial(values.__setitem__, step - 1)
            self._core.device.late(value, put)
        elif value is not None:
            values[step - 1] = float(value)

    def _watched(self, original: Any) -> Any:
        """A function that loads a state, or a checkpoint."""

        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            if self._steps and self._steps not in self._loads[-1:]:
                self._loads.append(self._steps)
            return original(*args, **kwargs)

        return load

    def _write(self) -> None:
        kept = {"grad_norms": self._norms, "rates": self._rates, "loads": self._loads}
        if self._held is not None:
            kept["batches"] = self._held.batches
        self._core.facts.write("proof", **kept)


def _closure(args: Any, kwargs: Any) -> Any:
    """What a step is given to evaluate; None for nothing. The optimizer is the first argument."""
    return args[1] if len(args) > 1 else kwargs.get("closure")


def _kept(rate: Any) -> Any:
    """A learning rate as it is now: one that is a tensor changes in place."""
    return rate.detach().clone() if isinstance(rate, torch.Tensor) else rate
