"""What `run_quick_profile` gives: a profile, the best batch size, and a summary of both."""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stepscope.report.batch_sizes import BatchSizes
from stepscope.report.finding_words import gain
from stepscope.report.inline import compact, inline_page
from stepscope.report.page_file import page
from stepscope.report.result import Inline, Result
from stepscope.report.story.batch import batch_section
from stepscope.report.story.blocks import Missing, Section, Story
from stepscope.report.text import safe

_MOST = 3
_LABEL = 17


class QuickProfile:
    """`run` is the profile, `batch` the search; None, with `problem`, where nothing was found."""

    def __init__(
        self, title: str, run: Result, batch: BatchSizes | None, problem: str | None = None
    ) -> None:
        self.title = title
        self.run = run
        self.batch = batch
        self.problem = problem
        self.report_file: Path | None = None
        """The dashboard; None as long as it is not written."""

    @property
    def optimal_batch(self) -> int | None:
        """The smallest size near the best throughput that leaves memory free."""
        return None if self.batch is None else self.batch.knee

    @property
    def peak_samples_per_s(self) -> float | None:
        """Of the fastest size that was tried, or of the profile."""
        row = self._fastest()
        rate = row["samples_per_s"] if row else self.run.document["steps"]["samples_per_s"]
        return None if rate is None else float(rate)

    @property
    def gpu_use(self) -> float | None:
        """Share of the time in which the GPU was busy; None without one."""
        gpu = self.run.document["gpu"]
        return None if gpu is None else gpu["busy_fraction"]

    @property
    def bottlenecks(self) -> list[str]:
        """What makes the step slow, the largest first, with what each would save."""
        document = self.run.document
        mean = document["steps"]["mean_ms"]
        told = [(one["title"], gain(one, mean)) for one in document["findings"]]
        return [f"{title} ({saved})" if saved else title for title, saved in told]

    @property
    def batch_table(self) -> list[dict[str, Any]]:
        """A row for each size that was tried; see `stepscope batch`."""
        return [] if self.batch is None else self.batch.curve

    @cached_property
    def story(self) -> Story:
        """The run's story with a section about batch sizes, second from the top."""
        first, *rest = self.run.story.sections
        if self.batch is not None:
            section = batch_section(self.batch.document)
        else:
            missing = Missing("No batch size was found.", self.problem or "")
            section = Section("batch", "Batch size", (missing,))
        return replace(self.run.story, title=self.title, sections=(first, section, *rest))

    def html(self) -> str:
        """The dashboard as one HTML file's text."""
        return page([self.run.subject], self.story)

    def report(self) -> Inline:
        """The dashboard, shown inside a notebook."""
        return Inline(inline_page(self.run.subject, self.story), repr(self))

    def __repr__(self) -> str:
        lines = [safe(self.title), "", *self._figures(), ""]
        if self.batch is not None:
            lines += repr(self.batch).splitlines()
        return "\n".join([*lines, *([f"\nreport: {self.report_file}"] if self.report_file else [])])

    def _repr_html_(self) -> str:
        return compact(self.story)

    def _fastest(self) -> dict[str, Any] | None:
        ran = [row for row in self.batch_table if row["samples_per_s"]]
        return max(ran, key=lambda row: float(row["samples_per_s"]), default=None)

    def _figures(self) -> list[str]:
        row, rate = self._fastest(), self.peak_samples_per_s
        at = f" at batch {row['batch']:,}" if row else ""
        best = self.optimal_batch
        use = self.gpu_use
        busy = "not known" if use is None else f"{use:.0%} busy"
        found = [safe(one) for one in self.bottlenecks[:_MOST]] or ["none found"]
        pairs = [
            ("optimal batch", f"{best:,}" if best is not None else self.problem or "none found"),
            ("peak throughput", f"{rate:,.0f} samples/s{at}" if rate else "not known"),
            ("GPU use", busy if self.run.document["gpu"] else "no GPU: computed on the CPU"),
            *zip(("bottlenecks", *[""] * _MOST), found, strict=False),
        ]
        return [f"  {name:<{_LABEL}}{safe(value)}" for name, value in pairs]
