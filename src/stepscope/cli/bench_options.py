"""The options of `stepscope bench` that say how a model is built, fed and measured."""

from collections.abc import Callable
from typing import Any

import click

_ABOVE_0 = click.FloatRange(0, min_open=True)
_FROM_0 = click.FloatRange(0)
_COUNT = click.IntRange(1)
_SETTINGS = (
    ("--seconds", _ABOVE_0, "Measured in each process [2]."),
    ("--steps", _COUNT, "Measure this many steps instead."),
    ("--epochs", _COUNT, "Train this often over all samples instead."),
    ("--size", _COUNT, "Pixels of an image's side."),
    ("--length", _COUNT, "Tokens or characters of a sample."),
    ("--classes", _COUNT, "Classes of a classifier."),
    ("--data", str, "synthetic, resident, cifar10, images:FOLDER … [resident]."),
    ("--samples", _COUNT, "Samples to train on."),
    ("--test-samples", _COUNT, "Samples to score on."),
    ("--target-score", float, "Time until this score."),
    ("--seed", int, "Of data and weights [0]."),
    ("--prompt", _COUNT, "Tokens of a prompt [32]."),
    ("--new-tokens", _COUNT, "Tokens to generate [32]."),
    ("--workers", click.IntRange(0), "Workers of the program's loader [0]."),
    ("--decode-ms", _FROM_0, "Unpacking of each sample."),
    ("--latency-ms", _FROM_0, "Waiting for each sample."),
    ("--resize", _COUNT, "Pixels of stored images, to be resized."),
    ("--disk-mb-s", _ABOVE_0, "Rate of a slow disk."),
    ("--threads", _COUNT, "Processor threads of an operation."),
    ("--memory-limit-gib", _ABOVE_0, "More counts as out of memory."),
)


def add_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all of them; what is not given is left to the program that measures."""
    for name, kind, words in reversed(_SETTINGS):
        command = click.option(name, type=kind, help=words)(command)
    return command
