"""Models that are replayed as CUDA graphs: what a replay gives lies where the next one writes."""

from typing import Any
from weakref import WeakSet

from stepscope.fixes.base import Hands

_SMALL = 16 << 20  # bytes of an output that is worth a copy


def guard_replays(hands: Hands, compiled: WeakSet[Any]) -> None:
    """Say where a step begins, hand out copies of outputs, and put gradients that are still
    needed, as where they are accumulated, into memory of their own."""
    import torch
    from torch.utils._pytree import tree_map_only

    fresh = False  # whether an optimizer has stepped since the last call
    own: dict[int, int] = {}

    def stepped(call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal fresh
        fresh = True
        return call(optimizer, *args, **kwargs)

    def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal fresh
        if module not in compiled:
            return call(module, *args, **kwargs)
        if torch.is_grad_enabled():
            _keep_gradients(module, own)
            if fresh:
                fresh = False
                torch.compiler.cudagraph_mark_step_begin()
        result = call(module, *args, **kwargs)
        if type(result) is torch.Tensor:
            return _copied(result)
        return tree_map_only(torch.Tensor, _copied, result)

    hands.seams.optimizer_stepped(stepped)
    hands.seams.root_called(called)


def _keep_gradients(module: Any, own: dict[int, int]) -> None:
    """Gradients are all there or, as usual before a forward, none. `own` has where those lie that
    were put aside: later ones are added to them. Many programs take them away only after the
    forward, so this is done in every step, and all of them are copied at once."""
    import torch

    trained = (parameter for parameter in module.parameters() if parameter.requires_grad)
    first = next(trained, None)
    if first is None or first.grad is None:
        own.clear()
        return
    moved = [parameter for parameter in (first, *trained) if _lies_elsewhere(parameter, own)]
    if not moved:
        return
    with torch.no_grad():
        copies = [torch.empty_like(parameter.grad) for parameter in moved]
        torch._foreach_copy_(copies, [parameter.grad for parameter in moved])
    for parameter, copy in zip(moved, copies, strict=True):
        parameter.grad = copy
        own[id(parameter)] = copy.data_ptr()


def _lies_elsewhere(parameter: Any, own: dict[int, int]) -> bool:
    grad = parameter.grad
    return not (grad is None or grad.is_sparse or own.get(id(parameter)) == grad.data_ptr())


def _copied(tensor: Any) -> Any:
    if not tensor.is_cuda or tensor.numel() * tensor.element_size() > _SMALL:
        return tensor
    return tensor.clone()
