"""`run_quick_profile`: a built-in model profiled, its best batch size, a dashboard."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from stepscope.api import load
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.report.quick import QuickProfile
from stepscope.report.text import plural, safe

_PROGRAM = "stepscope.workloads.train"
_DATA = ("cifar10", "synthetic")
_ENDLESS = ("--epochs", "100000", "--score-every", "1000000000")
"""Trials of batch sizes end by themselves, however large an epoch is."""


def run_quick_profile(
    model_name: str = "resnet18",
    dataset: str = "cifar10",
    epochs: int = 3,
    batch_size: int = 64,
    *,
    device: str | None = None,
    samples: int | None = None,
    max_batch: int | None = None,
    seconds: float = 1.0,
    budget_s: float = 120.0,
    out: str | Path | None = None,
    show: bool = True,
) -> QuickProfile:
    """Profile the training of a model, find its best batch size, say it and show a dashboard.

    `samples` of an epoch (None: all). Each batch size takes about `seconds` of steps, all of them
    at most `budget_s`. `show`: print the summary, and the dashboard in a notebook.
    """
    from stepscope.store.folder import create

    arguments = _arguments(model_name, dataset, batch_size, device, samples)
    _check("epochs", epochs)
    folder = create(None if out is None else Path(out), False, Path.cwd(), prefix="quick-")
    title = f"{model_name} on {dataset}, batch {batch_size}"
    _say(show, f"profiling {title}: {plural(epochs, 'epoch')}")
    _profile((*arguments, "--epochs", str(epochs)), folder / "run")
    _say(show, "looking for the best batch size")
    batch, problem = None, None
    try:
        batch = _search(
            (*arguments, *_ENDLESS), folder / "batch", max_batch, seconds, budget_s, show
        )
    except StepscopeError as error:
        problem = str(error)
    profile = QuickProfile(title, load(folder / "run"), batch, problem)
    _hand_over(profile, folder, show)
    return profile


def _arguments(
    model: str, dataset: str, batch: int, device: str | None, samples: int | None
) -> tuple[str, ...]:
    """What every process of this profile is given. Raises UsageError."""
    from stepscope.workloads.catalogue import find

    find(model)
    if dataset not in _DATA:
        raise UsageError(f"dataset={dataset!r}: use {' or '.join(map(repr, _DATA))}")
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"device={device!r}: use 'cpu' or 'cuda', or leave it out")
    _check("batch_size", batch)
    arguments = ["--model", model, "--data", dataset, "--batch", str(batch)]
    if samples is not None:
        _check("samples", samples)
        arguments += ["--samples", str(samples), "--test-samples", str(min(samples, 400))]
    return (*arguments, *(("--device", device) if device else ()))


def _check(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r}: use a number from 1 up")


def _profile(arguments: tuple[str, ...], folder: Path) -> None:
    """Observe the training. Raises StepscopeError with what it said last where it fails."""
    from stepscope.launch.observed import Request, observe
    from stepscope.launch.program import Program, check
    from stepscope.record.options import ProbeOptions
    from stepscope.tune.folder import OUTPUT, last_line

    folder.mkdir()
    program = Program(_PROGRAM, arguments, module=True)
    check(program, Path.cwd())
    options = ProbeOptions(folder=str(folder.absolute()), launched_ns=0, window=6, stacks=2)
    outcome = observe(Request(program, output=folder / OUTPUT), options)
    if outcome.told is not None:
        raise KeyboardInterrupt
    if outcome.exit_code != 0:
        said = safe(last_line(folder).removeprefix("train: "))
        raise StepscopeError(said or f"the training ended with exit code {outcome.exit_code}")


def _search(
    arguments: tuple[str, ...],
    folder: Path,
    largest: int | None,
    seconds: float,
    budget_s: float,
    show: bool,
) -> Any:
    from stepscope.launch.program import Program
    from stepscope.report.batch_sizes import BatchSizes
    from stepscope.tune.batch_program import Wanted
    from stepscope.tune.batching import Batching

    wanted = Wanted(largest=largest, seconds=seconds, budget_s=budget_s)
    with tempfile.TemporaryDirectory(prefix="stepscope-") as nothing:
        session = Batching(Program(_PROGRAM, arguments, module=True), folder, Path(nothing))
        document, interrupted = session.run(wanted, lambda size, got: _heard(show, size, got))
    if interrupted:
        raise KeyboardInterrupt
    return BatchSizes(document)


def _heard(show: bool, size: int | None, got: Any) -> None:
    if got is None:
        return
    told = got.status.replace("_", " ")
    if got.ok:
        told = f"{1e3 * len(got.sample_ms) / sum(got.sample_ms):,.0f} samples/s"
    _say(show, f"  batch {got.batch:,}: {told}")


def _hand_over(profile: QuickProfile, folder: Path, show: bool) -> None:
    """Write the dashboard, say the summary, and show the dashboard where there is a notebook."""
    try:
        (folder / "report.html").write_text(profile.html(), encoding="utf-8")
        profile.report_file = Path(os.path.relpath(folder / "report.html"))
    except StepscopeError as problem:  # no chart library
        _say(show, f"no dashboard: {problem}")
    if show:
        print(f"\n{profile!r}")
        if profile.report_file is not None and _in_notebook():
            from IPython.display import display

            display(profile.report())


def _in_notebook() -> bool:
    """Whether a browser shows what this process displays."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")


def _say(show: bool, text: str) -> None:
    if show:
        print(text, flush=True)
