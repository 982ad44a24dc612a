"""Command-line arguments of the workload programs. No torch here."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stepscope.record.errors import UsageError
from stepscope.workloads.data.options import DATA_CHOICES, parse_data


class ProgramArguments(Namespace):
    """One program's arguments. None or 0: not given, or not an option of this program. No defaults
    here: argparse would treat them as given."""

    model: str
    batch: int | None
    device: str
    seed: int
    steps: int | None
    seconds: float | None
    size: int | None
    classes: int | None
    length: int | None
    threads: int | None
    memory_limit_gib: float | None
    measure: Path | None
    flops: float | None
    data: str
    folder: Path | None  # where the data is; None if not given, or if nothing is read
    samples: int | None
    test_samples: int | None
    workers: int
    decode_ms: float
    latency_ms: float
    resize: int | None
    disk_mb_s: float | None
    epochs: int | None
    lr: float | None
    target_score: float | None
    score_every: int | None
    prompt: int
    new_tokens: int
    pin: str
    prefetch: int


_ELSEWHERE = {"length": None, "test_samples": None, "prompt": 0, "new_tokens": 0}
"""Values for programs without the option."""


def parse_arguments(mode: str, about: str, argv: Sequence[str] | None = None) -> ProgramArguments:
    """The arguments of `python -m stepscope.workloads.<mode>`. Raises UsageError in one line."""
    parser = _Parser(prog=f"python -m stepscope.workloads.{mode}", description=about)
    add = parser.add_argument
    add("--model", required=True, help="a built-in workload, file.py:factory, torchvision:NAME …")
    add("--batch", type=_count, help="samples per call; the default depends on the model")
    add("--device", choices=("cpu", "cuda", "auto"), default="auto")
    add("--seed", type=int, default=0)
    add("--steps", type=_count, help="total steps")
    add("--seconds", type=_positive, help="seconds to run, excluding warm-up")
    add("--size", type=_count, help="image height and width in pixels")
    add("--classes", type=_count)
    add("--threads", type=_count, help="CPU threads per operation")
    add("--memory-limit-gib", type=_positive, help="fail with out of memory above this limit")
    add("--measure", type=Path, metavar="FILE", help="measure and write the result to FILE as JSON")
    add("--flops", type=_positive, help="FLOPs per sample, if known: counting them takes seconds")
    if mode == "generate":
        add("--prompt", type=_count, default=32, help="tokens per prompt")
        add("--new-tokens", type=_count, default=32, help="tokens to generate")
    else:
        add("--length", type=_count, help="tokens or characters per sample")
        usual = "training reads synthetic samples by a DataLoader unless it is measured; else"
        add("--data", help=f"{DATA_CHOICES}. {usual} resident: made once, kept on the device")
        add("--samples", type=_count, help="number of training or inference samples")
        add("--workers", type=_whole, default=0, help="DataLoader workers")
        add("--decode-ms", type=_amount, default=0.0, help="CPU time to decode each sample")
        add("--latency-ms", type=_amount, default=0.0, help="latency of each sample")
        add("--resize", type=_count, metavar="PX", help="size of the stored images")
        add("--disk-mb-s", type=_positive, help="read samples from files, no faster than this")
    if mode == "train":
        add("--test-samples", type=_count, help="size of the test split")
        add("--epochs", type=_count)
        add("--lr", type=_positive, help="learning rate; the default depends on the model")
        add("--target-score", type=float, help="train until the test split reaches it")
        add("--score-every", type=_count, metavar="STEPS", help="score this often, not every epoch")
    if mode == "load":
        add("--pin", choices=("off", "on"), default="off")
        add("--prefetch", type=_count, default=2, help="batches ahead per worker")
    asked = parser.parse_args(argv, namespace=ProgramArguments())
    for name, value in _ELSEWHERE.items():
        setattr(asked, name, getattr(asked, name, value))
    if mode != "generate":
        loads = mode == "load" or (mode == "train" and asked.measure is None)
        usual = "synthetic" if loads else "resident"
        asked.data, asked.folder = parse_data(asked.data or usual)
    if asked.measure is not None and not asked.measure.absolute().parent.is_dir():
        raise UsageError(f"--measure {asked.measure}: no folder {asked.measure.parent}")
    return asked


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see --help)")


def _number(convert: Callable[[str], Any], fits: Callable[[Any], bool], what: str) -> Any:
    def convert_checked(text: str) -> Any:
        try:
            value = convert(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is not {what}") from None
        if not fits(value) or value == float("inf"):
            raise ArgumentTypeError(f"{text!r} is not {what}")
        return value

    return convert_checked


_count = _number(int, lambda value: value >= 1, "an integer of 1 or more")
_whole = _number(int, lambda value: value >= 0, "an integer of 0 or more")
_positive = _number(float, lambda value: value > 0, "a number above 0")
_amount = _number(float, lambda value: value >= 0, "a number of 0 or more")
