"""What studies ask of a request: one model, in training, at one batch size."""

from typing import Any, NamedTuple

from stepscope.bench.request import Request
from stepscope.record.errors import UsageError


class Subject(NamedTuple):
    """What is studied."""

    model: str
    batch: int
    settings: dict[str, Any]


def subject(request: Request) -> Subject:
    """The model, batch and settings of a study. Raises UsageError."""
    from stepscope.workloads.catalogue import find

    study = f"--study {request.study}"
    if len(request.models) != 1:
        raise UsageError(f"{study} takes one model, not {len(request.models)}")
    if request.modes != ("train",):
        raise UsageError(f"{study} trains its model: --mode train, or none")
    if request.batches is not None and len(request.batches) != 1:
        raise UsageError(f"{study} takes one batch size: --batch 64")
    if request.ablate:
        raise UsageError(f"{study} and --ablate do not go together")
    model = request.models[0]
    batch = request.batches[0] if request.batches else find(model).batch
    return Subject(model, batch, dict(request.settings))
