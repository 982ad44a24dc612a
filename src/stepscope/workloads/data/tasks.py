"""What a model is trained for: training and test samples, a loss to minimise and a score to
maximise.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.data import cifar10
from stepscope.workloads.data.options import TEST_SAMPLES, TRAIN_SAMPLES, DataOptions
from stepscope.workloads.data.samples import Samples, ToImageTensor, ToTokenTensor, keep_in_memory
from stepscope.workloads.data.simulated_cost import DecodedSource, DelayedSource, DiskSource
from stepscope.workloads.data.synthetic import (
    SyntheticCharacters,
    SyntheticImages,
    SyntheticShapes,
    SyntheticTokens,
    integers,
)
from stepscope.workloads.data.user_files import CharacterFile, ImageFolder
from stepscope.workloads.models.build import UserInputs

_DIFFERENT: Final = 64  # inputs requested from the user's function; further samples repeat them
_LABELS: Final = 1 << 31


class _UserSamples:
    """Model inputs (a tensor, a tuple or a dictionary) and a random number, which stands in for a
    label: the model's classes are known only from its outputs."""

    def __init__(
        self, split: str, samples: int, inputs: Callable[[int], Any], seed: int, name: str
    ) -> None:
        self.labels = torch.from_numpy(integers(seed, f"{split} given", samples, _LABELS))
        self._count = min(samples, _DIFFERENT)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(2 * seed + (split == "test"))
            self._inputs = _checked(inputs(self._count), self._count, name)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        label = self.labels[index]  # ends the iteration
        return tree_map(lambda part: part[index % self._count], self._inputs), label


def _checked(inputs: Any, batch: int, name: str) -> Any:
    """The inputs on the CPU: tuples and dictionaries of tensors with the batch first."""
    if isinstance(inputs, Tensor):
        if inputs.dim() and len(inputs) == batch:
            return inputs.detach().cpu()
        what = f"a tensor of shape {list(inputs.shape)}"
    elif isinstance(inputs, Mapping):
        return {key: _checked(part, batch, name) for key, part in inputs.items()}
    elif isinstance(inputs, (tuple, list)):
        return tuple(_checked(part, batch, name) for part in inputs)
    else:
        what = f"a {type(inputs).__name__}"
    raise UsageError(f"{name}: inputs({batch}) gave {what}; return tensors with the batch first")


GENERATED_KINDS: Final = ("synthetic", "resident")
_FITS: Final = {"cifar10": "images", "images": "images", "characters": "characters"}
"""The task of each set of real samples."""


def _make_dataset(
    split: str, workload: Workload, options: DataOptions, user: UserInputs | None
) -> Samples:
    """Items (input, target) of the "train" or "test" split. Raises UsageError if there are none."""
    _check(workload, options)
    pictures = workload.task in ("images", "segmentation")
    prepare: Callable[[Any, Any], tuple[Any, Any]]
    if workload.task == "user":
        prepare = _unchanged
    else:
        prepare = ToImageTensor(_number(workload, "size")) if pictures else ToTokenTensor()
    source = _source(split, workload, options, user)
    if options.data not in GENERATED_KINDS:
        there = cifar10.CLASSES if options.data == "cifar10" else len(source.classes)
        if there > _number(workload, "classes"):
            raise UsageError(
                f"--data {options.data}: it has {there} classes, {workload.name}"
                f" {workload.classes}: --classes {there}"
            )
    if options.disk_mb_per_s is not None:
        source = DiskSource(source, options.disk_mb_per_s)
    elif options.data in GENERATED_KINDS and pictures:
        source = keep_in_memory(source)
    if options.decode_ms:
        source = DecodedSource(source, options.decode_ms)
    if options.latency_ms:
        source = DelayedSource(source, options.latency_ms)
    return Samples(source, prepare)


def _source(split: str, workload: Workload, options: DataOptions, user: UserInputs | None) -> Any:
    task, data, seed = workload.task, options.data, options.seed
    asked = options.samples if split == "train" else options.test_samples
    made = asked or (TRAIN_SAMPLES if split == "train" else TEST_SAMPLES)
    if task == "user":
        if user is None:
            raise UsageError(f"{workload.name} returned no inputs; return (model, inputs)")
        return _UserSamples(split, made, user.inputs, seed, workload.name)
    if data in ("images", "characters") and options.folder is None:
        what = ("folder", "FOLDER") if data == "images" else ("file", "FILE")
        raise UsageError(f"--data {data}: give a {what[0]}, {data}:{what[1]}")
    if task in ("images", "segmentation"):
        classes, pixels = _number(workload, "classes"), options.resize or _number(workload, "size")
        if data == "cifar10":
            return cifar10.Cifar10(split, asked, options.folder)
        if data == "images" and options.folder:
            return ImageFolder(split, asked, options.folder, pixels)
        make = SyntheticShapes if task == "segmentation" else SyntheticImages
        return make(split, made, pixels, classes, seed)
    length, vocabulary = _number(workload, "length"), _number(workload, "vocabulary")
    if task == "language":
        return SyntheticTokens(split, made, length, vocabulary, seed)
    if data == "characters" and options.folder:
        return CharacterFile(split, asked, options.folder, length, vocabulary)
    classes = _number(workload, "classes")
    return SyntheticCharacters(split, made, length, vocabulary, classes, seed)


def _unchanged(inputs: Any, target: Any) -> tuple[Any, Any]:
    return inputs, target


def _check(workload: Workload, options: DataOptions) -> None:
    if options.data not in GENERATED_KINDS and _FITS[options.data] != workload.task:
        raise UsageError(
            f"--data {options.data}: {workload.name} is for task {workload.task}, these samples for"
            f" {_FITS[options.data]}: --data synthetic"
        )
    pictures = workload.task in ("images", "segmentation")
    if options.resize and (not pictures or options.data == "cifar10"):
        what = "cifar10 images are stored at 32 pixels" if pictures else "there are no images here"
        raise UsageError(f"--resize {options.resize}: {what}")
    if options.disk_mb_per_s and workload.task == "user":
        raise UsageError(f"--disk-mb-s: {workload.name} has its own inputs")


def _number(workload: Workload, option: str) -> int:
    value = getattr(workload, option)
    if value is None or value < 1:
        raise UsageError(f"{workload.name} needs --{option} N, 1 or more")
    return int(value)


_Score = tuple[Tensor, int]


class Task:
    """Samples (input, target) for training and for testing. The mean score is Σ sum / Σ count over
    batches; higher is better. `score_name` is None, and counts are 0, if nothing can be scored."""

    score_name: str | None = "accuracy"

    def __init__(
        self, train: Samples, test: Samples, own_loss: Callable[[Any], Tensor] | None = None
    ) -> None:
        self.train = train
        self.test = test
        self._own_loss = own_loss

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits(outputs), targets)

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """(correctly classified samples, all samples)."""
        return (logits(outputs).argmax(1) == targets).sum(), len(targets)


class Segmentation(Task):
    """The class of every pixel."""

    score_name = "dice"

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """(sum of Dice over samples, number of samples)."""
        return dice(logits(outputs), targets).sum(), len(targets)


class Language(Task):
    """The next token at every position."""

    score_name = "token_accuracy"

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        return super().loss(logits(outputs).flatten(0, 1), targets.flatten())

    def score(self, outputs: Any, targets: Tensor) -> _Score:
        """(correctly predicted tokens, all tokens)."""
        return (logits(outputs).argmax(-1) == targets).sum(), targets.numel()


class UserTask(Task):
    """A user's model: its own loss; else random classes to learn; else outputs to minimise."""

    score_name = None

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
        """No score: a user's model has no known goal."""
        return torch.zeros((), device=targets.device), 0


def make_task(workload: Workload, options: DataOptions, user: UserInputs | None = None) -> Task:
    """The task of a workload; `user` is what a user's factory returned."""
    train = _make_dataset("train", workload, options, user)
    test = _make_dataset("test", workload, options, user)
    kinds: dict[str, type[Task]] = {"segmentation": Segmentation, "language": Language}
    kind = (kinds | {"user": UserTask}).get(workload.task, Task)
    return kind(train, test, user.loss if user else None)


def dice(outputs: Tensor, masks: Tensor) -> Tensor:
    """2|A∩B| / (|A|+|B|) per sample, averaged over the classes in A or B: [N]."""
    numbers = torch.arange(outputs.shape[1], device=outputs.device)[None, :, None]
    found = outputs.argmax(1).flatten(1)[:, None] == numbers
    there = masks.flatten(1)[:, None] == numbers
    either = found.sum(2) + there.sum(2)
    ratio = 2 * (found & there).sum(2) / either.clamp(min=1)
    return ratio.sum(1) / (either > 0).sum(1)


def logits(outputs: Any) -> Tensor:
    """The relevant tensor among a model's outputs."""
    if isinstance(outputs, Tensor):
        return outputs
    for name in ("logits", "out"):
        found = outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)
        if isinstance(found, Tensor):
            return found
    return logits(next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs)))
