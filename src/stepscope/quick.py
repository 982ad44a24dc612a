"""`run_quick_profile`: profile a built-in model, find its best batch size, write a dashboard."""

import os
import sys
import tempfile
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from stepscope.analyze.run.document import RunSummary
from stepscope.api import load
from stepscope.batch.document import SizeRow
from stepscope.batch.finder import BatchFinder
from stepscope.batch.program import BatchRequest
from stepscope.batch.sizes import SizeMeasurement
from stepscope.launch.observed_run import RunRequest, observe_program
from stepscope.launch.program import Program, check_program
from stepscope.measure.trial.folder import OUTPUT_FILE, last_output_line
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.units import plural
from stepscope.report.render.html.page import result_page
from stepscope.report.render.notebook.objects import (
    BatchSizes,
    Inline,
    Result,
    compact_html,
    inline_page,
)
from stepscope.report.story.batch import batch_section
from stepscope.report.story.blocks import Cell, Missing, Section, Story
from stepscope.report.story.findings import gain_text
from stepscope.report.text import safe
from stepscope.results.load import Run
from stepscope.store.folder import create_folder
from stepscope.workloads.catalogue import find_workload

_MOST = 3
_LABEL = 17


class QuickProfile:
    """A profile and a batch size search; `batch` is None, with a `problem`, if the search
    failed."""

    def __init__(
        self, title: str, run: Result, batch: BatchSizes | None, problem: str | None = None
    ) -> None:
        self.title = title
        self.run = run
        self.batch = batch
        self.problem = problem
        self.report_file: Path | None = None
        """The dashboard; None until it is written."""

    @property
    def optimal_batch(self) -> int | None:
        """The smallest size near the best throughput that leaves enough memory free."""
        return None if self.batch is None else self.batch.knee

    @property
    def peak_samples_per_s(self) -> float | None:
        """Throughput of the fastest batch size tried, else of the profile."""
        row = self._fastest()
        return row.samples_per_s if row else self._summary.steps.samples_per_s

    @property
    def gpu_use(self) -> float | None:
        """Share of time the GPU was busy; None without one."""
        gpu = self._summary.gpu
        return None if gpu is None else gpu.busy_fraction

    @property
    def bottlenecks(self) -> list[str]:
        """What slows the step, largest first, with what a fix would save."""
        document = self.run.subject.document
        mean = document["steps"]["mean_ms"]
        told = [(one["title"], gain_text(one, mean)) for one in document["findings"]]
        return [f"{title} ({saved})" if saved else title for title, saved in told]

    @property
    def batch_table(self) -> list[dict[str, Cell]]:
        """One row per batch size tried; see `stepscope batch`."""
        return [] if self.batch is None else self.batch.curve

    @cached_property
    def story(self) -> Story:
        """The run's story with a second section about batch sizes."""
        first, *rest = self.run.story.sections
        if self.batch is not None:
            section = batch_section(self.batch.result)
        else:
            missing = Missing("No batch size found.", self.problem or "")
            section = Section("batch", "Batch size", (missing,))
        return replace(self.run.story, title=self.title, sections=(first, section, *rest))

    def html(self) -> str:
        """The dashboard as one HTML file's text."""
        return result_page([self.run.subject], self.story)

    def report(self) -> Inline:
        """The dashboard, shown inside a notebook."""
        return Inline(inline_page(self.run.subject, self.story), repr(self))

    def __repr__(self) -> str:
        lines = [safe(self.title), "", *self._figures(), ""]
        if self.batch is not None:
            lines += repr(self.batch).splitlines()
        lines += [f"\nreport: {self.report_file}"] if self.report_file else []
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return compact_html(self.story)

    @property
    def _summary(self) -> RunSummary:
        assert isinstance(self.run.subject, Run)
        return self.run.subject.summary

    def _fastest(self) -> SizeRow | None:
        ran = [row for row in self.batch.result.curve if row.samples_per_s] if self.batch else []
        return max(ran, key=lambda row: row.samples_per_s or 0.0, default=None)

    def _figures(self) -> list[str]:
        row, rate = self._fastest(), self.peak_samples_per_s
        at = f" at batch {row.batch:,}" if row else ""
        best, use = self.optimal_batch, self.gpu_use
        busy = "unknown" if use is None else f"{use:.0%} busy"
        found = [safe(one) for one in self.bottlenecks[:_MOST]] or ["none found"]
        pairs = [
            ("optimal batch", f"{best:,}" if best is not None else self.problem or "none found"),
            ("peak throughput", f"{rate:,.0f} samples/s{at}" if rate else "unknown"),
            ("GPU use", busy if self._summary.gpu else "no GPU, ran on the CPU"),
            *zip(("bottlenecks", *[""] * _MOST), found, strict=False),
        ]
        return [f"  {name:<{_LABEL}}{safe(value)}" for name, value in pairs]


_PROGRAM = "stepscope.workloads.train"
_DATA = ("cifar10", "synthetic")
_ENDLESS = ("--epochs", "100000", "--score-every", "1000000000")
"""Epochs for batch size trials, which stop by themselves."""


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
    """Profile a model's training, find its best batch size and write a dashboard.

    `samples` per epoch (None: all). Each batch size is measured for about `seconds`, the search
    stops after `budget_s`. `show` prints the summary and, in a notebook, the dashboard.
    """
    arguments = _arguments(model_name, dataset, batch_size, device, samples)
    _check("epochs", epochs)
    folder = create_folder(None if out is None else Path(out), False, Path.cwd(), prefix="quick-")
    title = f"{model_name} on {dataset}, batch {batch_size}"
    _say(show, f"profiling {title}: {plural(epochs, 'epoch')}")
    _profile((*arguments, "--epochs", str(epochs)), folder / "run")
    _say(show, "searching for the best batch size")
    batch, problem = None, None
    wanted = BatchRequest(largest=max_batch, seconds=seconds, budget_s=budget_s)
    try:
        batch = _search((*arguments, *_ENDLESS), folder / "batch", wanted, show)
    except StepscopeError as error:
        problem = str(error)
    profile = QuickProfile(title, load(folder / "run"), batch, problem)
    _show_profile(profile, folder, show)
    return profile


def _arguments(
    model: str, dataset: str, batch: int, device: str | None, samples: int | None
) -> tuple[str, ...]:
    """The arguments all processes of this profile share. Raises UsageError."""
    find_workload(model)
    if dataset not in _DATA:
        raise UsageError(f"dataset={dataset!r}: use {' or '.join(map(repr, _DATA))}")
    if device not in (None, "cpu", "cuda"):
        raise UsageError(f"device={device!r}: use 'cpu', 'cuda' or None")
    _check("batch_size", batch)
    arguments = ["--model", model, "--data", dataset, "--batch", str(batch)]
    if samples is not None:
        _check("samples", samples)
        arguments += ["--samples", str(samples), "--test-samples", str(min(samples, 400))]
    return (*arguments, *(("--device", device) if device else ()))


def _check(name: str, value: int) -> None:
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"{name}={value!r}: must be a positive integer")


def _profile(arguments: tuple[str, ...], folder: Path) -> None:
    """Observe the training. Raises StepscopeError with its last line of output if it fails."""
    folder.mkdir()
    program = Program(_PROGRAM, arguments, module=True)
    check_program(program, Path.cwd())
    options = ProbeOptions(folder=str(folder.absolute()), launched_ns=0, window=6, stacks=2)
    outcome = observe_program(RunRequest(program, output=folder / OUTPUT_FILE), options)
    if outcome.end_signal is not None:
        raise KeyboardInterrupt
    if outcome.exit_code != 0:
        said = safe(last_output_line(folder).removeprefix("train: "))
        raise StepscopeError(said or f"the training ended with exit code {outcome.exit_code}")


def _search(
    arguments: tuple[str, ...], folder: Path, wanted: BatchRequest, show: bool
) -> BatchSizes:
    def tell(size: int | None, got: SizeMeasurement | None) -> None:
        if got is not None:
            told = got.status.label
            if got.ok:
                told = f"{1e3 * len(got.sample_ms) / sum(got.sample_ms):,.0f} samples/s"
            _say(show, f"  batch {got.batch:,}: {told}")

    with tempfile.TemporaryDirectory(prefix="stepscope-") as nothing:
        program = Program(_PROGRAM, arguments, module=True)
        session = BatchFinder(program, folder, Path(nothing), unguarded=True)  # our own program
        result, interrupted = session.run(wanted, tell)
    if interrupted:
        raise KeyboardInterrupt
    return BatchSizes(result)


def _show_profile(profile: QuickProfile, folder: Path, show: bool) -> None:
    """Write the dashboard and print the summary; in a notebook, show the dashboard too."""
    try:
        (folder / "report.html").write_text(profile.html(), encoding="utf-8")
        profile.report_file = Path(os.path.relpath(folder / "report.html"))
    except StepscopeError as problem:  # no chart library
        _say(show, f"no dashboard: {problem}")
    if show:
        print(f"\n{profile!r}")
        module = sys.modules.get("IPython")
        shell = module.get_ipython() if module is not None else None
        if profile.report_file is not None and hasattr(shell, "kernel"):  # a browser shows it
            from IPython.display import display

            display(profile.report())


def _say(show: bool, text: str) -> None:
    if show:
        print(text, flush=True)
