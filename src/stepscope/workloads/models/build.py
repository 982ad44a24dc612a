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
    """What a user's factory returned besides the model: a function for a batch of inputs, and the
    loss of outputs. `loss` is None if there was none: the model can run but not train."""

    inputs: Callable[[int], Any]
    loss: Callable[[Any], Tensor] | None


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model on the CPU, in fp32 and training mode. `workload` is the requested one with the
    model's actual size, classes, length and vocabulary; `user` is for task "user" only."""

    model: nn.Module
    user: UserInputs | None
    workload: Workload


def build_model(
    workload: Workload,
    size: int | None = None,
    classes: int | None = None,
    length: int | None = None,
) -> BuiltModel:
    """The model, with another size, number of classes or length if given. Raises UsageError if it
    cannot be built that way."""
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
