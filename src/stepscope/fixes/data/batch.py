"""Form batches of another size."""

import re
from typing import Any

from stepscope.fixes.applicability import ObservedProgram, ProgramPart, TrainingChange
from stepscope.fixes.base import Fix, FixContext, FixKind, SourceEdit
from stepscope.fixes.inspect.source_edit import with_arguments
from stepscope.record.errors import UsageError

_MOST = 1 << 20  # samples of a batch
_SHAPES = re.compile(
    r"invalid for input of size|must match the size of|must match the existing size"
    r"|[Ee]xpected (hidden|input batch_size|target|.*batch)|size mismatch|[Ss]izes of tensors"
    r"|shapes? cannot be|could not be broadcast|mat1 and mat2"
)


class Batch(Fix):
    """Every loader that forms batches gets it, for training or not; one of size 1 is left alone.

    Number of steps, learning rate and schedule stay as the program has them.
    """

    name = "batch"
    group = "batch"
    title = "form batches of N samples"
    kind = FixKind.SEMANTIC
    effort = "one argument, and the learning rate to think about"
    values = ("N",)
    suggested = ("64", "128", "256", "512")
    missing = "no DataLoader forms batches here"
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
        if proposed is not None or program.batch_size is None:
            return [] if proposed is None else [proposed]
        return [str(2 * program.batch_size)]

    def most(self, program: ObservedProgram) -> int:
        return _MOST

    def install(self, value: Any, hands: FixContext) -> None:
        self._size = value

        def made(arguments: dict[str, Any]) -> None:
            where = f"DataLoader at {hands.place()}"
            sampler = arguments.get("batch_sampler")
            before = arguments.get("batch_size", 1) if sampler is None else _size(sampler)
            reason = _unfit(arguments, before, value)
            if before is None or reason is not None:
                hands.unfit(f"the {where} {reason}")
                return
            if sampler is None:
                arguments["batch_size"] = value
            else:
                sampler.batch_size = value
            self._replaced.add(before)
            hands.applied(f"{where}: {before} → {value}")

        hands.seams.loader_made(made)

    def explain(self, error: BaseException, line: str) -> str | None:
        text = f"{type(error).__name__}: {error}"
        if "OutOfMemoryError" in text or "out of memory" in text:
            return f"a batch of {self._size} does not fit into memory; try a smaller one"
        numbers = set(map(int, re.findall(r"\b\d{1,9}\b", text)))
        known = self._replaced & numbers
        if known and _SHAPES.search(text):
            return (
                f"the program counts on batches of {min(known)}; have it use the batch's own size"
            )
        return None

    def edit(self, value: Any, line: str) -> SourceEdit:
        changed = with_arguments(line, "DataLoader", {"batch_size": str(value)})
        words = f"pass batch_size={value} to the DataLoader, and see whether the learning rate fits"
        return SourceEdit(words, changed)


def _size(sampler: Any) -> int | None:
    """The batch size of torch's own batch sampler; of others it is not known what it means."""
    from torch.utils.data import BatchSampler

    return sampler.batch_size if type(sampler) is BatchSampler else None


def _unfit(arguments: dict[str, Any], before: int | None, value: int) -> str | None:
    """Why a loader keeps its batch size."""
    if arguments.get("batch_sampler") is not None and before is None:
        return "has a batch sampler of its own"
    if before is None:
        return "does not form batches"
    if before == value:
        return f"has batches of {value} already"
    if before == 1:
        return "gives samples one by one"
    sampler = getattr(arguments.get("batch_sampler"), "sampler", arguments.get("sampler"))
    try:
        count = len(arguments["dataset"] if sampler is None else sampler)
    except (TypeError, NotImplementedError):  # an IterableDataset need not know
        return None
    return f"has {count} samples only" if count < value else None


FIX = Batch()
