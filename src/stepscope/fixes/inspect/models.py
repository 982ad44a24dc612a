"""A model's convolution weights, and flags of torch's own optimizers. A flag is decided when an
optimizer first steps, not when it is made: by then its parameters are in place and have
gradients."""

import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from stepscope.fixes.base import FixContext, LiveProgram, refused_by_all
from stepscope.fixes.lazy import torch
from stepscope.record.fix import OPTIMIZER, Applied, NotApplied, Reason, SourceLine

NOT_TORCHS_STEP = Reason("not_torchs_step", "{subject}: not one of torch's own optimizers")
NO_SUCH_VERSION = Reason("no_such_version", "{subject}: torch has no {code} version of it")
PROGRAM_SETS_FLAG = Reason("program_sets_flag", "{subject}: the program sets {code}={value} itself")
DIFFERENTIABLE = Reason("differentiable", "{subject}: differentiable=True rules out {code}")


def parameters_of(module: Any) -> Iterator[Any]:
    """A model's parameters, without a call of what its class may put in place of the method."""
    found: Iterator[Any] = torch.nn.Module.parameters(module)
    return found


def is_checkpointed(module: Any) -> bool:
    """Whether a model of transformers recomputes its layers; its own property warns."""
    return any(getattr(part, "gradient_checkpointing", False) for part in module.modules())


def convolution_weights(module: Any) -> list[Any]:
    """The weights of all convolution layers, each once. Computed ones (weight or spectral norm) and
    ones without a shape yet are left out: accessing them would change them."""
    layers = [one for one in module.modules() if isinstance(one, torch.nn.modules.conv._ConvNd)]
    weights = {id(weight): weight for one in layers for weight in [one._parameters.get("weight")]}
    return [w for w in weights.values() if w is not None and not torch.nn.parameter.is_lazy(w)]


class StateSnapshot:
    """A snapshot of a model's buffers and all random states."""

    def __init__(self, module: Any) -> None:
        is_lazy = torch.nn.parameter.is_lazy
        self._buffers = [(b, b.clone()) for b in module.buffers() if not is_lazy(b)]
        self._torch, self._python = torch.get_rng_state(), random.getstate()
        devices = {p.device for p in parameters_of(module) if p.is_cuda}
        self._cuda = {device: torch.cuda.get_rng_state(device) for device in devices}
        self._numpy = sys.modules.get("numpy")
        self._legacy = self._numpy.random.get_state() if self._numpy else None

    def restore(self) -> None:
        for buffer, kept in self._buffers:
            buffer.data.copy_(kept)  # unseen by autograd, which may have saved it for backward
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        for device, state in self._cuda.items():
            torch.cuda.set_rng_state(state, device)
        if self._numpy:
            self._numpy.random.set_state(self._legacy)


Decide = Callable[[Any, dict[str, Any]], NotApplied | None]


def switch_optimizer_flag(
    flag: str,
    context: FixContext,
    decide: Decide,
    undone: Callable[[Any], None] = lambda _: None,
) -> None:
    """Set `flag` in every parameter group unless `decide(optimizer, group)` gives a reason against
    it. A group whose flag the program set is left alone and reported. `undone` is called once some
    flags were taken back, with their optimizer."""
    made_at: WeakKeyDictionary[Any, SourceLine | None] = WeakKeyDictionary()
    kept: WeakKeyDictionary[Any, set[int]] = WeakKeyDictionary()
    seen: WeakSet[Any] = WeakSet()
    ours: WeakKeyDictionary[Any, list[dict[str, Any]]] = WeakKeyDictionary()

    def made(optimizer: Any, defaults: dict[str, Any]) -> None:
        made_at[optimizer] = context.place()

    def stepped(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        known = kept.setdefault(optimizer, set())
        for place, group in enumerate(optimizer.param_groups):
            if place in known or (group.get(flag) is not None and optimizer in seen):
                continue
            name, made_here = type(optimizer).__name__, made_at.get(optimizer)
            refused = _flag_conflict(flag, optimizer, group) or decide(optimizer, group)
            if refused is not None:
                known.add(place)
                context.not_applied(replace(_about(optimizer, refused), place=made_here))
            else:
                group[flag] = True
                ours.setdefault(optimizer, []).append(group)
                context.applied(Applied(OPTIMIZER, name, made_here))
        seen.add(optimizer)
        return call(optimizer, *args, **kwargs)

    def switched(on: bool) -> None:
        for optimizer, groups in () if on else [*ours.items()]:
            for group in groups:
                group[flag] = None
            undone(optimizer)
        ours.clear()
        seen.clear()

    context.watching.optimizer_made(made)
    context.seams.optimizer_stepped(stepped)
    context.when_switched(switched)


def flag_refused(flag: str | None, live: LiveProgram, decide: Decide) -> NotApplied | None:
    """Why `flag` would be set of no parameter group at all; None where it would of some."""
    groups = ((one, group) for one in live.optimizers for group in one.param_groups)
    answers = (_flag_conflict(str(flag), one, group) or decide(one, group) for one, group in groups)
    found = refused_by_all(answers)
    return found and _about(live.optimizers[0], found)


def _about(optimizer: Any, refused: NotApplied) -> NotApplied:
    return replace(refused, target=OPTIMIZER, object=type(optimizer).__name__)


def torch_optimizer_name(optimizer: Any) -> str | None:
    """The torch.optim class whose `step` an optimizer runs; None for foreign steps."""
    cls = next(base for base in type(optimizer).__mro__ if "step" in vars(base))
    return cls.__name__ if cls.__module__.startswith("torch.optim.") else None


def _flag_conflict(flag: str, optimizer: Any, group: dict[str, Any]) -> NotApplied | None:
    """Why a group's flag must not be set, whatever its parameters."""
    if torch_optimizer_name(optimizer) is None:
        return NotApplied(NOT_TORCHS_STEP)
    if flag not in group:
        return NotApplied(NO_SUCH_VERSION, code=flag)
    for name in ("fused", "foreach"):
        if group.get(name) is not None:
            return NotApplied(PROGRAM_SETS_FLAG, code=name, value=str(group[name]))
    if group.get("differentiable"):
        return NotApplied(DIFFERENTIABLE, code=flag)
    return None
