"""A module that came without inputs: taken as an image classifier, after a look whether it is."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.record.errors import UsageError
from stepscope.workloads.built import Built
from stepscope.workloads.workload import Workload

SIZE = 224
_OTHERWISE = "return (module, inputs, loss) for a model of another kind"


def as_classifier(workload: Workload, model: nn.Module) -> Built:
    """The module at the asked size or 224 pixels, with as many classes as it has outputs."""
    size = workload.size or SIZE
    try:
        outputs = _outputs(model, size)
    except Exception as problem:
        text = " ".join(str(problem).split())
        raise UsageError(
            f"{workload.name}: it does not take images [N, 3, {size}, {size}] ({text}): "
            f"use --size, or {_OTHERWISE}"
        ) from problem
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        form = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UsageError(f"{workload.name}: gives {form}, not logits [N, classes]: {_OTHERWISE}")
    classes = outputs.shape[1]
    if workload.classes not in (None, classes):
        raise UsageError(f"{workload.name}: it has {classes} classes, not {workload.classes}")
    return Built(model, None, replace(workload, task="images", size=size, classes=classes))


def _outputs(model: nn.Module, size: int) -> Any:
    """What one image gives; every part of the model stays in the mode it was in."""
    training = [(module, module.training) for module in model.modules()]
    parameter = next(model.parameters(), torch.zeros(()))
    image = torch.zeros(1, 3, size, size, dtype=parameter.dtype, device=parameter.device)
    try:
        with torch.no_grad():
            return model.eval()(image)
    finally:
        for module, mode in training:
            module.training = mode
