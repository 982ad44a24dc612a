"""The training or the test samples of a workload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from stepscope.record.errors import UsageError
from stepscope.workloads import data_cifar10
from stepscope.workloads.built import Given
from stepscope.workloads.data_character_file import CharacterFile
from stepscope.workloads.data_characters import SyntheticCharacters
from stepscope.workloads.data_disk import OnDisk
from stepscope.workloads.data_expense import Late, Unpacked
from stepscope.workloads.data_given import GivenSamples
from stepscope.workloads.data_image_folder import ImageFolder
from stepscope.workloads.data_images import SyntheticImages
from stepscope.workloads.data_items import Codes, Pictures, Samples, Source, held
from stepscope.workloads.data_language import SyntheticTokens
from stepscope.workloads.data_options import TEST_SAMPLES, TRAIN_SAMPLES, DataOptions
from stepscope.workloads.data_segmentation import SyntheticShapes
from stepscope.workloads.workload import Workload

MADE: Final = ("synthetic", "resident")
_FITS: Final = {"cifar10": "images", "images": "images", "characters": "characters"}
"""The task that each set of real samples is for."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model takes and gives. None: it has no such thing."""

    size: int | None = None
    classes: int | None = None
    length: int | None = None
    vocabulary: int | None = None


def data_set(
    split: str, workload: Workload, shape: Shape, options: DataOptions, given: Given | None
) -> Samples:
    """Items (input, target) of the "train" or "test" split. UsageError where there are none."""
    _check(workload, options)
    prepare: Callable[[Any, Any], tuple[Any, Any]]
    if workload.task == "given":
        source, prepare = _given(split, workload, options, given), _as_they_are
    elif workload.task in ("images", "segmentation"):
        size = _number(workload, shape.size, "size")
        source, prepare = _pictures(split, workload, size, shape, options), Pictures(size)
    else:
        source, prepare = _codes(split, workload, shape, options), Codes()
    _check_classes(workload, shape, options, source)
    return Samples(_at_cost(source, workload, options), prepare)


def _pictures(
    split: str, workload: Workload, size: int, shape: Shape, options: DataOptions
) -> Source:
    classes = _number(workload, shape.classes, "classes")
    if options.data == "cifar10":
        return data_cifar10.Cifar10(split, _asked(split, options), options.folder)
    pixels = options.resize or size
    if options.data == "images":
        if options.folder is None:
            raise UsageError("--data images: say which folder, images:FOLDER")
        return ImageFolder(split, _asked(split, options), options.folder, pixels)
    make: Callable[..., Source]
    make = SyntheticShapes if workload.task == "segmentation" else SyntheticImages
    return make(split, _made(split, options), pixels, classes, options.seed)


def _codes(split: str, workload: Workload, shape: Shape, options: DataOptions) -> Source:
    length = _number(workload, shape.length, "length")
    vocabulary = _number(workload, shape.vocabulary, "vocabulary")
    if workload.task == "language":
        return SyntheticTokens(split, _made(split, options), length, vocabulary, options.seed)
    if options.data == "characters":
        if options.folder is None:
            raise UsageError("--data characters: say which file, characters:FILE")
        asked = _asked(split, options)
        return CharacterFile(split, asked, options.folder, length, vocabulary)
    classes = _number(workload, shape.classes, "classes")
    count = _made(split, options)
    return SyntheticCharacters(split, count, length, vocabulary, classes, options.seed)


def _given(split: str, workload: Workload, options: DataOptions, given: Given | None) -> Source:
    if given is None:
        raise UsageError(f"{workload.name} brought no inputs: return (model, inputs)")
    made = _made(split, options)
    return GivenSamples(split, made, given.inputs, options.seed, workload.name)


def _as_they_are(inputs: Any, target: Any) -> tuple[Any, Any]:
    return inputs, target


def _at_cost(source: Source, workload: Workload, options: DataOptions) -> Source:
    """The samples as expensive as they are asked to be."""
    if options.disk_mb_per_s is not None:
        source = OnDisk(source, options.disk_mb_per_s)
    elif options.data in MADE and workload.task in ("images", "segmentation"):
        source = held(source)
    if options.decode_ms:
        source = Unpacked(source, options.decode_ms)
    return Late(source, options.latency_ms) if options.latency_ms else source


def _check(workload: Workload, options: DataOptions) -> None:
    """Whether the model can use such samples at all."""
    fits = options.data in MADE or _FITS[options.data] == workload.task
    if not fits:
        raise UsageError(
            f"--data {options.data}: {workload.name} is for task {workload.task}, these samples for"
            f" {_FITS[options.data]}: --data synthetic"
        )
    pictures = workload.task in ("images", "segmentation")
    if options.resize and (not pictures or options.data == "cifar10"):
        what = "cifar10 images are stored at 32 pixels" if pictures else "there are no images here"
        raise UsageError(f"--resize {options.resize}: {what}")
    if options.disk_mb_per_s and workload.task == "given":
        raise UsageError(f"--disk-mb-s: {workload.name} brings its own inputs")


def _check_classes(workload: Workload, shape: Shape, options: DataOptions, source: Any) -> None:
    """Whether the model has an output for every class of real samples."""
    if options.data in MADE:
        return
    there = data_cifar10.CLASSES if options.data == "cifar10" else len(source.classes)
    if there > _number(workload, shape.classes, "classes"):
        raise UsageError(
            f"--data {options.data}: it has {there} classes, {workload.name} {shape.classes}:"
            f" --classes {there}"
        )


def _asked(split: str, options: DataOptions) -> int | None:
    return options.samples if split == "train" else options.test_samples


def _made(split: str, options: DataOptions) -> int:
    asked = _asked(split, options)
    return asked or (TRAIN_SAMPLES if split == "train" else TEST_SAMPLES)


def _number(workload: Workload, value: int | None, option: str) -> int:
    if value is None or value < 1:
        raise UsageError(f"{workload.name} needs --{option} N, 1 or more")
    return value
