"""What `stepscope.load` and `find_batch_size` return: objects with a display of their own."""

import io
import re
from dataclasses import replace
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy.typing as npt

from stepscope.batch.document import Batch
from stepscope.record.errors import UsageError
from stepscope.report.render.html.page import render_page, result_page
from stepscope.report.render.notebook.figures import Drawing, ResultTable
from stepscope.report.render.terminal.story import print_story
from stepscope.report.story.batch import size_table, stop_text, verdict_sentence
from stepscope.report.story.blocks import (
    Cell,
    Chart,
    Paragraph,
    Section,
    Story,
    Table,
    TimelineView,
)
from stepscope.report.story.narrator import screen_of, story_of
from stepscope.report.text import safe
from stepscope.results.load import LoadedResult

_HEAD = "<head>\n"
_MAY = "allow-scripts allow-downloads allow-popups allow-popups-to-escape-sandbox"


def in_iframe(page: str, height: int) -> str:
    """A page as HTML for a notebook's output, in its own origin; `height` in pixels."""
    # Otherwise links to its sections would lead to the page around it.
    page = page.replace(_HEAD, f'{_HEAD}<base href="about:srcdoc">\n', 1)
    style = f"width:100%;height:{height}px;border:1px solid #8884;border-radius:6px"
    return (
        f'<iframe sandbox="{_MAY}" allow="clipboard-write" style="{style}" loading="lazy"'
        f' title="stepscope report" srcdoc="{escape(page, quote=True)}"></iframe>'
    )


def compact_html(story: Story) -> str:
    """The leading sections without charts, which would add megabytes to the notebook."""
    parts = []
    for part in story.short().sections:
        kept = tuple(one for one in part.blocks if not isinstance(one, Chart | TimelineView))
        parts += [replace(part, blocks=kept)] if kept else []
    more = Paragraph("Charts, tables and the timeline: .report()")
    parts.append(Section("more", "More", (more,)))
    return in_iframe(render_page(replace(story, sections=tuple(parts))), height=460)


def inline_page(subject: LoadedResult, story: Story) -> str:
    """The whole report without the trace itself, which would add megabytes to the output."""
    return result_page([subject.replaced(trace=None)], story)


_HEIGHT = 720


class Result:
    """Any result. Displays as a screen in a console, as a report in a notebook."""

    def __init__(self, subject: LoadedResult) -> None:
        self.subject = subject
        """What reports are made from."""

    @property
    def kind(self) -> str:
        """run, trace, tune, bench or batch."""
        return self.subject.kind

    @property
    def name(self) -> str:
        """Its id, or the file's name."""
        return self.subject.name

    @property
    def folder(self) -> Path | None:
        """Its folder; None for a trace."""
        return self.subject.folder

    @property
    def document(self) -> dict[str, object]:
        """What the command's `--json` prints."""
        return self.subject.document

    @cached_property
    def story(self) -> Story:
        """The content of its reports, in sections and blocks."""
        return story_of(self.subject)

    @cached_property
    def charts(self) -> dict[str, Drawing]:
        """All charts of the report by id."""
        return {block.id: Drawing(block) for block in self.story.blocks if isinstance(block, Chart)}

    @cached_property
    def tables(self) -> dict[str, ResultTable]:
        """All tables of the report by id."""
        found = (block for block in self.story.blocks if isinstance(block, Table))
        return {block.id: ResultTable(block) for block in found}

    def chart(self, name: str) -> Drawing:
        """One of `charts`. Raises UsageError listing their ids if there is no such chart."""
        return _named(self.charts, name, "chart")

    def table(self, name: str) -> ResultTable:
        """One of `tables`. Raises UsageError listing their ids if there is no such table."""
        return _named(self.tables, name, "table")

    def steps(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays with one entry per step of a run; empty for results without steps.

        `duration_ms` until the device was done, `samples`, `loss`, `in_window`, `clocked`, and
        `<phase>_ms` as the host saw it: NaN, but for `data_wait_ms`, where not clocked.
        """
        tables = self.subject.tables
        if tables is None or tables.steps is None:
            return {}
        steps = tables.steps
        names = ("samples", "loss", "in_window", "clocked")
        whole = {
            "duration_ms": steps.done() / 1e6,
            **{name: getattr(steps, name) for name in names},
        }
        return whole | {f"{phase}_ms": values / 1e6 for phase, values in steps.host.items()}

    def html(self) -> str:
        """The whole report as one HTML file's text."""
        return result_page([self.subject], self.story)

    def report(self) -> "Inline":
        """The whole report, shown inside a notebook."""
        return Inline(inline_page(self.subject, self.story), repr(self))

    def __repr__(self) -> str:
        """What the command that made it prints, without colours."""
        stream = io.StringIO()
        print_story(screen_of(self.subject), stream)
        return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).strip("\n")

    def _repr_html_(self) -> str:
        return compact_html(self.story)


class Inline:
    """A whole report as a notebook output; `text` if only text can be shown."""

    def __init__(self, page: str, text: str) -> None:
        self._page = page
        self._text = text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return in_iframe(self._page, _HEIGHT)


T = TypeVar("T")


def _named(found: dict[str, T], name: str, what: str) -> T:
    if name not in found:
        there = ", ".join(sorted(found)) or "none"
        raise UsageError(f"there is no {what} {name} here: {there}")
    return found[name]


class BatchSizes:
    """The result of a batch size search."""

    def __init__(self, result: Batch) -> None:
        self.result = result

    @property
    def document(self) -> dict[str, object]:
        """What `batch --json` prints."""
        found: dict[str, object] = msgspec.to_builtins(self.result)
        return found

    @property
    def knee(self) -> int | None:
        """The smallest size near the best throughput that keeps the headroom, or None."""
        return None if self.result.knee is None else self.result.knee.batch

    @property
    def largest(self) -> int | None:
        """The largest size that ran, or None."""
        return None if self.result.largest is None else self.result.largest.batch

    @property
    def curve(self) -> list[dict[str, Cell]]:
        """One row per size, smallest first: batch, samples_per_s, step_ms, memory_bytes …"""
        return [msgspec.to_builtins(row) for row in self.result.curve]

    def __repr__(self) -> str:
        table, stop = repr(ResultTable(size_table(self.result))), self.result.stopped
        lines = [safe(verdict_sentence(self.result)), "", table]
        return "\n".join([*lines, *([f"Stopped: {safe(stop_text(stop))}."] if stop else [])])

    def _repr_html_(self) -> str:
        table = ResultTable(size_table(self.result))._repr_html_()
        return f"<p>{escape(safe(verdict_sentence(self.result)))}</p>{table}"
