"""What `stepscope.load` gives: a result with its document, tables, charts and report."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from stepscope.record.errors import UsageError
from stepscope.report.drawing import Drawing
from stepscope.report.frame import framed
from stepscope.report.inline import compact, inline_page
from stepscope.report.page_file import page
from stepscope.report.result_table import ResultTable
from stepscope.report.screens import screen
from stepscope.report.story.blocks import Chart, Story, Table
from stepscope.report.story.of import story_of
from stepscope.report.subject import Document, Subject

_HEIGHT = 720


class Result:
    """A run, trace, tune or bench. Shows itself: a screen in a console, a report in a notebook."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        """What reports are made from."""

    @property
    def kind(self) -> str:
        """run, trace, tune or bench."""
        return self.subject.kind

    @property
    def name(self) -> str:
        """Its id, or the file's name."""
        return self.subject.name

    @property
    def folder(self) -> Path | None:
        """Where it lies; None for a trace."""
        return self.subject.folder

    @property
    def document(self) -> Document:
        """What the command's `--json` prints."""
        return self.subject.document

    @cached_property
    def story(self) -> Story:
        """What its reports say, in sections and blocks."""
        return story_of(self.subject)

    @cached_property
    def charts(self) -> dict[str, Drawing]:
        """Every chart of the report by its id."""
        return {block.id: Drawing(block) for block in self._blocks() if isinstance(block, Chart)}

    @cached_property
    def tables(self) -> dict[str, ResultTable]:
        """Every table of the report by its id."""
        found = (block for block in self._blocks() if isinstance(block, Table))
        return {block.id: ResultTable(block) for block in found}

    def chart(self, name: str) -> Drawing:
        """One of `charts`. Raises UsageError with those there are."""
        _check(self.charts, name, "chart")
        return self.charts[name]

    def table(self, name: str) -> ResultTable:
        """One of `tables`. Raises UsageError with those there are."""
        _check(self.tables, name, "table")
        return self.tables[name]

    def steps(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays with one entry a step of a run; empty for what has no steps.

        `duration_ms` until the device was done, `samples`, `loss`, `in_window`, and `<phase>_ms`
        as the host saw it.
        """
        tables = self.subject.tables()
        if tables is None or tables.steps is None:
            return {}
        steps = tables.steps
        phases = {f"{phase}_ms": values / 1e6 for phase, values in steps.host.items()}
        return {
            "duration_ms": steps.done() / 1e6,
            "samples": steps.samples,
            "loss": steps.loss,
            "in_window": steps.in_window,
            **phases,
        }

    def html(self) -> str:
        """The whole report as one HTML file's text."""
        return page([self.subject], self.story)

    def report(self) -> "Inline":
        """The whole report, shown inside a notebook."""
        return Inline(inline_page(self.subject, self.story), repr(self))

    def __repr__(self) -> str:
        return screen(self.subject)

    def _repr_html_(self) -> str:
        return compact(self.story)

    def _blocks(self) -> Any:
        return (block for section in self.story.sections for block in section.blocks)


class Inline:
    """A whole report as an output of a notebook; `text` where only that can be shown."""

    def __init__(self, page: str, text: str) -> None:
        self._page = page
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return framed(self._page, _HEIGHT)


def _check(found: dict[str, Any], name: str, what: str) -> None:
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise UsageError(f"there is no {what} {name} here: {there}")
