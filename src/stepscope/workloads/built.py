"""What building a workload gives."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from stepscope.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Given:
    """What a user's factory brought: inputs for a batch of some size, and the loss of outputs.

    `loss` is None where the factory brought none: such a model can be run but not trained.
    """

    inputs: Callable[[int], Any]
    loss: Callable[[Any], Tensor] | None


@dataclass(frozen=True, slots=True)
class Built:
    """A model on the CPU, in fp32 and training mode. `workload` is the one asked for with the size,
    classes, length and vocabulary that the model really has; `given` is for task "given" only.
    """

    model: nn.Module
    given: Given | None
    workload: Workload
