"""What a model is trained for: its samples, the loss to lower and the score to raise."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from stepscope.workloads.built import Given
from stepscope.workloads.data_items import Samples
from stepscope.workloads.data_options import DataOptions, parse_data
from stepscope.workloads.data_resident import resident
from stepscope.workloads.data_sets import Shape, data_set
from stepscope.workloads.workload import Workload

__all__ = ["DataOptions", "Shape", "Task", "logits", "make_task", "parse_data", "resident"]

_Score = tuple[Tensor, int]


class Task:
    """Samples (input, target) to train with and others to test with.

    The mean score is Σ sum / Σ count over batches; higher is better. `score_name` is None, and
    counts are 0, where nothing can be scored.
    """

    score_name: str | None = "accuracy"

    def __init__(self, train: Samples, test: Samples, classes: int | None) -> None:
        self.train = train
        self.test = test
        self.classes = classes

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        """The mean cross-entropy of a batch."""
        return nn.functional.cross_entropy(logits(outputs), targets)

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """How many samples are classified rightly, of how many."""
        return (logits(outputs).argmax(1) == targets).sum(), len(targets)


class Segmentation(Task):
    """The class of every pixel."""

    score_name = "dice"

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """The sum over samples of Dice, and their number."""
        return dice(logits(outputs), targets).sum(), len(targets)


class Language(Task):
    """The next token at every place."""

    score_name = "token_accuracy"

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        return super().loss(logits(outputs).flatten(0, 1), targets.flatten())

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """How many tokens are foretold, of how many."""
        return (logits(outputs).argmax(-1) == targets).sum(), targets.numel()


class GivenTask(Task):
    """A user's model: its own loss; else random classes to learn; else outputs to make small."""

    score_name = None

    def __init__(self, train: Samples, test: Samples, loss: Callable[[Any], Tensor] | None) -> None:
        super().__init__(train, test, None)
        self._own_loss = loss

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        if self._own_loss is not None:
            return self._own_loss(outputs)
        own = getattr(outputs, "loss", None)
        if isinstance(own, Tensor):
            return own
        given = logits(outputs)
        if given.dim() == 2 and given.shape[1] > 1:
            return nn.functional.cross_entropy(given, targets % given.shape[1])
        return given.float().square().mean()

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """Nothing: a user's model has no known aim."""
        return torch.zeros((), device=targets.device), 0


def make_task(
    workload: Workload, shape: Shape, options: DataOptions, given: Given | None = None
) -> Task:
    """The task of a workload. `given` is what a user's factory brought, for task "given" only."""
    train = data_set("train", workload, shape, options, given)
    test = data_set("test", workload, shape, options, given)
    if workload.task == "given":
        return GivenTask(train, test, given.loss if given else None)
    return _TASKS[workload.task](train, test, shape.classes)


_TASKS: Final[Mapping[str, type[Task]]] = {
    "images": Task,
    "characters": Task,
    "segmentation": Segmentation,
    "language": Language,
}


def dice(outputs: Tensor, masks: Tensor) -> Tensor:
    """2|A∩B| / (|A|+|B|) of each sample, the mean over the classes that are in A or B: [N]."""
    numbers = torch.arange(outputs.shape[1], device=outputs.device)[None, :, None]
    found = outputs.argmax(1).flatten(1)[:, None] == numbers
    there = masks.flatten(1)[:, None] == numbers
    either = found.sum(2) + there.sum(2)
    ratio = 2 * (found & there).sum(2) / either.clamp(min=1)
    return ratio.sum(1) / (either > 0).sum(1)


def logits(outputs: Any) -> Tensor:
    """The tensor that counts among what a model returns."""
    if isinstance(outputs, Tensor):
        return outputs
    for name in ("logits", "out"):
        found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    return logits(next(iter(parts)))
