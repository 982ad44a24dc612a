"""The loss scale float16 needs: gradients too small for it survive backward.

Only values inside backward are scaled. The loss and the gradients the program sees are not, so
clipping, accumulation, several optimizers and programs that read `grad` need no special care. A
gradient that overflowed arrives as NaN, even after clipping, and the optimizer's step is skipped.
"""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet, ref

from stepscope.fixes.base import FixContext
from stepscope.fixes.lazy import torch
from stepscope.record.fix import NotApplied, Reason

Hook = Callable[[Any], Any]
CLOSURE_OPTIMIZER = Reason(
    "closure_optimizer",
    "{object} computes gradients inside its step{at}: steps that overflow cannot be skipped; use"
    " amp=bf16",
)
OVERFLOWS = Reason("overflows", "gradients overflow fp16 in {value} steps in a row; use amp=bf16")


class _LeafHooks:
    """A hook on every known leaf. The hook sees what a backward adds before it is added, so
    gradients in `grad` are never scaled, even if several backwards accumulate."""

    def __init__(self, hook: Hook) -> None:
        unserializable = torch.utils.hooks.unserializable_hook
        self._hook: Hook = unserializable(lambda gradient: hook(gradient))
        self._hooked: dict[int, tuple[Any, Any]] = {}  # by id: a weak reference, the handle

    def add(self, tensors: Iterable[Any]) -> None:
        """Hook leaves that require gradients and have no hook yet."""
        for tensor in tensors:
            known = self._hooked.get(id(tensor))
            if known is not None and known[0]() is tensor:
                continue
            if tensor.requires_grad and tensor.is_leaf:
                self._hooked[id(tensor)] = (ref(tensor), tensor.register_hook(self._hook))

    def remove(self) -> None:
        for _, handle in self._hooked.values():
            handle.remove()
        self._hooked.clear()


def _autograd_leaves(tensors: Iterable[Any]) -> Iterable[Any]:
    """The leaves of the graph that led to some tensors."""
    waiting = [tensor.grad_fn for tensor in tensors]
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting.extend(follows for follows, _ in node.next_functions)


_FIRST = 2.0**12  # below the usual 2^16, with which many programs skip their first steps
_GROW_AFTER = 2000
_PATIENCE = 50
_WALKED = 2  # first backwards whose whole graph is searched for unknown leaves


class LossScaler:
    """Scales backwards, skips steps that overflowed, and adapts the scale."""

    def __init__(self, context: FixContext) -> None:
        self.active = False
        """From the first call in float16 on."""
        self.possible = True
        """Whether such a call may come, perhaps inside an optimizer's step."""
        self.scale = _FIRST
        self.leaves = _LeafHooks(self._unscaled)
        self._context = context
        self._wanted = _FIRST
        self._running = 0  # scaled backwards under way
        self._backwards = 0
        self._good = self._bad = 0
        self._optimizers: WeakSet[Any] = WeakSet()

    def install(self) -> None:
        seams = self._context.seams
        self._context.watching.optimizer_made(lambda one, _: self._optimizers.add(one))
        self._context.when_switched(self._switched)
        seams.backward(self._backward)
        seams.optimizer_stepped(self._stepped)
        seams.core.on_end.append(self.leaves.remove)

    def _switched(self, on: bool) -> None:
        """Off, it takes its hooks away; on, it waits for the next call in float16."""
        if not on:
            self.active = False
            self.leaves.remove()
            self._backwards = 0

    def _backward(self, call: Any, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        nested = torch._C._current_graph_task_id() != -1
        if not self.active or nested or kwargs.get("grad_variables") is not None:
            return call(tensors, *args, **kwargs)
        outputs = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        given = args[0] if args else kwargs.pop("grad_tensors", None)
        self.scale = self._wanted
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                self.leaves.add(group["params"])
        if self._backwards < _WALKED:
            self._backwards += 1
            self.leaves.add(_autograd_leaves(outputs))
        self._running += 1
        try:
            return call(outputs, self._scaled(outputs, given), *args[1:], **kwargs)
        finally:
            self._running -= 1

    def _scaled(self, outputs: tuple[Any, ...], given: Any) -> list[Any]:
        """What a backward begins with, times the scale."""
        if given is None or isinstance(given, torch.Tensor):
            given = [given] * len(outputs)
        return [
            gradient * self.scale
            if gradient is not None
            else (torch.full_like(output, self.scale) if output.numel() == 1 else None)
            for output, gradient in zip(outputs, given, strict=False)
        ]

    def _unscaled(self, gradient: Any) -> Any:
        """A leaf's hook: unscales, and marks overflows in a way clipping cannot hide."""
        if not self._running:
            return None
        gradient = gradient * (1 / self.scale)
        if gradient.layout is not torch.strided:
            return gradient
        nan = float("nan")
        return torch.nan_to_num(gradient, nan=nan, posinf=nan, neginf=nan)

    def _stepped(self, call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        closure = args[0] if args else kwargs.get("closure")
        if not self.active and (closure is None or not self.possible):
            return call(optimizer, *args, **kwargs)
        result = None
        if closure is not None:
            cls = type(optimizer)
            if not cls.__module__.startswith("torch.optim") or cls.__name__ == "LBFGS":
                result = call(optimizer, *args, **kwargs)  # may evaluate it more than once
                if self.active:
                    name, place = cls.__qualname__, self._context.place()
                    record = NotApplied(CLOSURE_OPTIMIZER, object=name, place=place)
                    self._context.not_applied(record)
                return result
            with torch.enable_grad():
                result = closure()
            args, kwargs = (lambda: result,), {}
        if not self.active:
            return call(optimizer, *args, **kwargs)
        if not _all_finite(p.grad for group in optimizer.param_groups for p in group["params"]):
            self._leave_out(optimizer)
            return result
        self._good, self._bad = self._good + 1, 0
        if self._good % _GROW_AFTER == 0:
            self._wanted = self.scale * 2
        return call(optimizer, *args, **kwargs)

    def _leave_out(self, optimizer: Any) -> None:
        """Skip a step, which still counts as one, and reduce the scale."""
        self._good, self._bad = 0, self._bad + 1
        self._wanted = self.scale / 2
        if self._bad == _PATIENCE:
            self._context.not_applied(NotApplied(OVERFLOWS, value=_PATIENCE))
        self._context.seams.core.step_skipped(optimizer)


def _all_finite(gradients: Iterable[Any]) -> bool:
    """Whether no gradient has an infinite or undefined element. Waits for the device."""
    groups: dict[Any, list[Any]] = {}
    for gradient in gradients:
        if gradient is not None:
            dense = gradient._values() if gradient.is_sparse else gradient
            groups.setdefault((dense.device, dense.dtype), []).append(dense.detach())
    for (device, _), dense_ones in groups.items():
        found = torch.zeros((), device=device)
        one = torch.ones((), device=device)
        torch._amp_foreach_non_finite_check_and_unscale_(dense_ones, found, one)
        if found.item():
            return False
    return True
