"""The size of the gradients an optimizer is about to step over."""

from typing import Any

import torch


def squared_norm(optimizer: Any) -> Any:
    """The sum of squares of all gradients, in float64 on their device; None where there are none.

    A loss scale still in them, as with optimizers that take it off by themselves, is taken off.
    """
    gradients = [
        gradient.coalesce().values() if gradient.is_sparse else gradient
        for group in optimizer.param_groups
        for parameter in group["params"]
        if (gradient := parameter.grad) is not None
    ]
    alike: dict[Any, list[Any]] = {}
    for gradient in gradients:
        alike.setdefault((gradient.device, gradient.dtype), []).append(gradient.detach())
    sums = [_sum_of_squares(some) for some in alike.values()]
    if not sums:
        return None
    total = sum(part.to(sums[0].device) for part in sums[1:]) + sums[0]
    scale = getattr(optimizer, "grad_scale", None)
    return total if scale is None else total / torch.as_tensor(scale).to(total.device) ** 2


def _sum_of_squares(gradients: list[Any]) -> Any:
    if gradients[0].is_complex():
        gradients = [torch.view_as_real(gradient) for gradient in gradients]
    dtype = torch.promote_types(gradients[0].dtype, torch.float32)
    norms = torch._foreach_norm([gradient.to(dtype) for gradient in gradients])
    return torch.stack(norms).double().square().sum()
