"""Builds the model of a workload."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from typing import Any

from torch import Tensor, nn

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload


@dataclass(frozen=True, slots=True)
class UserInputs:
    """What a user's factory brought: inputs for a batch of some size, and the loss of outputs.
    `loss` is None where the factory brought none: such a model can be run but not trained."""

    inputs: Callable[[int], Any]
    loss: Callable[[Any], Tensor] | None


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model on the CPU, in fp32 and training mode. `workload` is the one asked for with the size,
    classes, length and vocabulary that the model really has; `user` is for task "user" only."""

    model: nn.Module
    user: UserInputs | None
    workload: Workload


def build_model(
    workload: Workload,
    size: int | None = None,
    classes: int | None = None,
    length: int | None = None,
) -> BuiltModel:
    """The model, for another size, number of classes or length where one is given. Raises
    UsageError where the model cannot be made so."""
    wanted = replace(
        workload,
        size=workload.size if size is None else size,
        classes=workload.classes if classes is None else classes,
        length=workload.length if length is None else length,
    )
    module, _, name = workload.make.partition(":")
    make = getattr(import_module(module), name)
    offered = {"workload": wanted} | {
        name: getattr(wanted, name) for name in ("size", "classes", "length", "vocabulary")
    }
    taken = {name: offered[name] for name in signature(make).parameters if name in offered}
    try:
        made = make(**taken, **workload.options)
    except ValueError as problem:
        reason = " ".join(str(problem).split())
        raise UsageError(f"{workload.name}: {reason}") from problem
    built = BuiltModel(made, None, wanted) if isinstance(made, nn.Module) else made
    return built if workload.task == "user" else replace(built, model=built.model.float().train())
