"""What a proof compares besides losses: gradient norms, learning rates, loads, the state at the
end and, in inference, a part of the first outputs. Never waits for the device before the steps are
over; None: not known.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch.compiler import is_compiling
from torch.optim import optimizer as optimizer_hooks

from stepscope.probe.core import Core
from stepscope.probe.patches import Patches
from stepscope.probe.proof.controls import PerBatchDraws
from stepscope.probe.proof.state import StateRecorder
from stepscope.record.facts import OutputsFact, ProblemFact, ProofFact
from stepscope.record.problems import ProblemKind


def squared_gradient_norm(optimizer: Any) -> Any:
    """The sum of squares of all gradients, in float64 on their device; None where there are none. A
    loss scale still in them, as with optimizers that take it off by themselves, is taken off."""
    alike: dict[Any, list[Any]] = {}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if (gradient := parameter.grad) is not None:
            gradient = gradient.coalesce().values() if gradient.is_sparse else gradient
            gradient = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient.detach())
    sums = []
    for (_, dtype), gradients in alike.items():
        finer = torch.promote_types(dtype, torch.float32)
        norms = torch._foreach_norm([gradient.to(finer) for gradient in gradients])
        sums.append(torch.stack(norms).double().square().sum())
    if not sums:
        return None
    total = sum(part.to(sums[0].device) for part in sums[1:]) + sums[0]
    scale = getattr(optimizer, "grad_scale", None)
    return total if scale is None else total / torch.as_tensor(scale).to(total.device) ** 2


OUTPUTS = "outputs.npz"
_CALLS = 20
_MOST_VALUES = 4096


class _OutputRecorder:
    """Keeps values of the first root calls on their device until the end. They are dropped once the
    program turns out to train."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: list[tuple[Any, Any]] = []
        self._done = False

    def install(self) -> None:
        """Outside of every fix: what the program gets to see is kept."""
        self._core.around_root.insert(0, self._called)
        self._core.fixing = True
        self._core.on_end.append(self._write)

    def _called(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if not self._done and not is_compiling() and not self._core.device.capturing:
            self._done = self._trains() or len(self._kept) >= _CALLS
            if not self._done:
                self._keep(result)
        return result

    def _trains(self) -> bool:
        return bool(self._core.optimizers or self._core.backwards or self._core.stepping)

    def _keep(self, result: Any) -> None:
        try:
            floating = [one for one in tensors_in(result) if one.is_floating_point()]
            leaf = next((one for least in (2, 1) for one in floating if one.numel() >= least), None)
            if leaf is not None:
                self._kept.append((values_of(leaf), top1_of(leaf)))
        except Exception as problem:
            self._done = True
            fact = ProblemFact(kind=ProblemKind.NO_OUTPUTS, detail=repr(problem))
            self._core.facts.write(fact)

    def _write(self) -> None:
        if not self._kept or self._trains():
            return
        import numpy

        arrays: dict[str, Any] = {}
        for number, (values, top1) in enumerate(self._kept):
            arrays[f"values_{number}"] = values.float().cpu().numpy()
            if top1 is not None:
                arrays[f"top1_{number}"] = top1.cpu().numpy()
        numpy.savez(Path(self._core.options.folder) / OUTPUTS, **arrays)
        self._core.facts.write(OutputsFact(file=OUTPUTS, calls=len(self._kept)))


def tensors_in(value: Any) -> Iterator[Any]:
    """Every tensor in what a model returned, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name, None))


def values_of(tensor: Any) -> Any:
    """At most 4,096 of a tensor's values, evenly taken; a copy on its device."""
    return _evenly(tensor.detach().reshape(-1)).clone()


def top1_of(tensor: Any) -> Any:
    """Where the largest value along the last dimension is, of at most 4,096 rows; None: no rows."""
    if tensor.dim() < 2 or tensor.shape[-1] < 2:
        return None
    return _evenly(tensor.detach().reshape(-1, tensor.shape[-1])).argmax(-1)


def _evenly(rows: Any) -> Any:
    count = len(rows)
    if count <= _MOST_VALUES:
        return rows
    return rows[torch.arange(_MOST_VALUES, device=rows.device) * count // _MOST_VALUES]


_NORMS = 3
_WRITTEN_EVERY = 50


class ProofRecorder:
    """Records it, and writes fact `proof` from time to time and at the end."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._norms: list[float | None] = []
        self._rates: list[float | None] = []
        self._loads: list[int] = []
        self._squares: list[Any] = []  # of the step under way, one for each optimizer
        self._rate: Any = None
        self._steps = 0
        self._norms_wanted = _NORMS
        self._state = StateRecorder(core)
        self._held = PerBatchDraws(core.options.seed or 0) if core.options.held else None

    def install(self, patches: Patches) -> None:
        """Take hold of optimizers, loading and root models."""
        core = self._core
        before = optimizer_hooks.register_optimizer_step_pre_hook(self._before)
        after = optimizer_hooks.register_optimizer_step_post_hook(self._after)
        core.on_end.extend([before.remove, after.remove, self._write])
        core.on_step.append(self._step_ended)
        for owner, name in (
            (torch, "load"),
            (torch.nn.Module, "load_state_dict"),
            (torch.optim.Optimizer, "load_state_dict"),
        ):
            patches.set(owner, name, self._watched(getattr(owner, name)))
        self._state.install()
        _OutputRecorder(core).install()
        if self._held is not None:
            self._held.install(patches)

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """A step begins. One that is given a closure computes its gradients only inside."""
        if self._ignored():
            return
        if self._rate is None and optimizer.param_groups:
            rate = optimizer.param_groups[0].get("lr")
            # As it is now: one that is a tensor changes in place.
            self._rate = rate.detach().clone() if isinstance(rate, torch.Tensor) else rate
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
            square = squared_gradient_norm(optimizer)
        except Exception as problem:
            fact = ProblemFact(kind=ProblemKind.NO_GRADIENT_NORM, detail=repr(problem))
            self._core.facts.write(fact)
            self._norms_wanted = 0
            return
        if square is not None:
            self._squares.append(square)

    def _step_ended(self, step: int) -> int:
        """Settle the step. Those of a program in which no optimizer steps have nothing of it."""
        if not self._core.stepping:
            return step + 1
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
        self._state.step_ended(step)
        return step + 1

    def _keep(self, value: Any, values: list[float | None], step: int) -> None:
        """Put a number at its step's place, once it is known."""
        if isinstance(value, torch.Tensor):
            self._core.device.late(value, functools.partial(values.__setitem__, step - 1))
        elif value is not None:
            values[step - 1] = float(value)

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def load(*args: Any, **kwargs: Any) -> Any:
            if self._steps and self._steps not in self._loads[-1:]:
                self._loads.append(self._steps)
            return original(*args, **kwargs)

        return load

    def _write(self) -> None:
        fact = ProofFact(grad_norms=self._norms, rates=self._rates, loads=self._loads)
        if self._held is not None:
            fact.batches = self._held.batches
        self._core.facts.write(fact)


def _closure(args: Any, kwargs: Any) -> Any:
    """What a step is given to evaluate; None for nothing. The optimizer is the first argument."""
    return args[1] if len(args) > 1 else kwargs.get("closure")
