"""Form batches of another size."""

import re
from dataclasses import replace
from typing import Any

from stepscope.fixes.applicability import ObservedProgram, ProgramPart
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit
from stepscope.fixes.edit.calls import with_argument
from stepscope.fixes.lazy import torch
from stepscope.record.errors import UsageError
from stepscope.record.fix import (
    EPOCH_TOO_SMALL,
    LOADER,
    NOT_BATCHED,
    OUT_OF_MEMORY,
    OWN_BATCH_SAMPLER,
    Applied,
    Broke,
    NotApplied,
    Reason,
    TrainingChange,
)

_MOST = 1 << 20  # samples of a batch
_SHAPES = re.compile(
    r"invalid for input of size|must match the size of|must match the existing size"
    r"|[Ee]xpected (hidden|input batch_size|target|.*batch)|size mismatch|[Ss]izes of tensors"
    r"|shapes? cannot be|could not be broadcast|mat1 and mat2"
)
BATCH_SIZE_ALREADY = Reason("batch_size_already", "{subject} already has batch size {value}")
SINGLE_SAMPLES = Reason("single_samples", "{subject} has batch size 1")
FIXED_BATCH_SIZE = Reason(
    "fixed_batch_size", "the program relies on batches of {value}; have it use the batch's own size"
)


class Batch(Fix):
    """Every loader that forms batches gets it, for training or not; one of size 1 is left alone.
    The program's number of steps, learning rate and schedule stay."""

    name = "batch"
    group = "batch"
    title = "form batches of N samples"
    kind = FixKind.SEMANTIC
    effort = "one argument, and perhaps the learning rate"
    values = ("N",)
    suggested = ("64", "128", "256", "512")
    missing = "no DataLoader forms batches"
    works_on = ProgramPart.LOADER
    acts_in_step = False
    step_grows = True
    training_change = TrainingChange.BATCH_SIZE

    def __init__(self) -> None:
        self._replaced: set[int] = set()
        self._size = 0

    def parse(self, text: str | None) -> Any:
        if text is None:
            raise UsageError("--fix batch needs a number: batch=64")
        return super().parse(text)

    def first_values(self, program: ObservedProgram, proposed: str | None) -> list[str | None]:
        if proposed is None and program.batch_size is not None:
            return [str(2 * program.batch_size)]
        return [proposed] if proposed else []

    def most(self, program: ObservedProgram) -> int:
        return _MOST

    def check(self, live: LiveProgram) -> NotApplied | None:
        """Asked for twice the size: nothing proposes a smaller one."""
        if live.loader is None:
            return None
        arguments = live.loader.arguments
        before = _batch_size(arguments)
        return _refused(arguments, before, 2 * (before or 0))

    def install(self, value: Any, context: FixContext) -> None:
        self._size = value

        def made(arguments: dict[str, Any]) -> None:
            sampler, before = arguments.get("batch_sampler"), _batch_size(arguments)
            refused = _refused(arguments, before, value)
            if refused is not None:
                context.not_applied(replace(refused, place=context.place()))
                return
            if sampler is None:
                arguments["batch_size"] = value
            else:
                sampler.batch_size = value
            self._replaced.add(before or 1)
            context.applied(Applied(LOADER, place=context.place(), before=before, after=value))

        context.seams.loader_made(made)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        text = f"{type(error).__name__}: {error}"
        if "OutOfMemoryError" in text or "out of memory" in text:
            return Broke(OUT_OF_MEMORY, value=self._size)
        numbers = set(map(int, re.findall(r"\b\d{1,9}\b", text)))
        known = self._replaced & numbers
        if known and _SHAPES.search(text):
            return Broke(FIXED_BATCH_SIZE, value=min(known))
        return None

    def edit(self, value: Any, line: str) -> SourceEdit:
        changed = with_argument(line, ("DataLoader",), "batch_size", str(value))
        words = f"pass batch_size={value} to the DataLoader, and check the learning rate"
        return SourceEdit(words, changed)

    def trainer_setting(self, value: Any, device: str | None = None) -> dict[str, str]:
        return {"per_device_train_batch_size": str(value)}


def _batch_size(arguments: dict[str, Any]) -> int | None:
    """Of a loader made so; None where it forms no batches, or in a way of its own."""
    sampler = arguments.get("batch_sampler")
    if sampler is None:
        size: int | None = arguments.get("batch_size", 1)
        return size
    # Of others than torch's own it is not known what it means.
    return sampler.batch_size if type(sampler) is torch.utils.data.BatchSampler else None


def _refused(arguments: dict[str, Any], before: int | None, value: int) -> NotApplied | None:
    """Why a loader keeps its batch size; None: it does not."""
    batches = arguments.get("batch_sampler")
    if before is None:
        return NotApplied(NOT_BATCHED if batches is None else OWN_BATCH_SAMPLER, LOADER)
    if before == value:
        return NotApplied(BATCH_SIZE_ALREADY, LOADER, value=value)
    if before == 1:
        return NotApplied(SINGLE_SAMPLES, LOADER)
    sampler = getattr(batches, "sampler", arguments.get("sampler"))
    try:
        count = len(arguments["dataset"] if sampler is None else sampler)
    except (TypeError, NotImplementedError):  # an IterableDataset need not know
        return None
    return NotApplied(EPOCH_TOO_SMALL, LOADER, value=count) if count < value else None


FIX = Batch()
