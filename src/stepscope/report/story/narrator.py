"""The story of a result, or of several side by side with a table of versions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from textwrap import wrap
from typing import Any

from stepscope.report.render.csv_tables import heading
from stepscope.report.story.blocks import (
    Block,
    Card,
    Cell,
    Chart,
    Column,
    Missing,
    Section,
    Story,
    Table,
    TimelineView,
)
from stepscope.report.story.compare import comparison_story
from stepscope.report.story.findings import distinct_answers
from stepscope.report.story.phrases import display_path
from stepscope.report.text import format_cell, format_number, safe
from stepscope.results.comparison import Comparison, KernelComparison
from stepscope.results.load import LoadedResult

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Version:
    """None: not known. `gpu_use` is 0 to 1."""

    name: str
    step_ms: float | None
    samples_per_s: float | None
    gpu_use: float | None
    memory_bytes: float | None

    def speedup_to(self, first: "_Version") -> float | None:
        """How many times as fast: by samples where both are known, else by steps."""
        if self.samples_per_s and first.samples_per_s:
            return self.samples_per_s / first.samples_per_s
        return first.step_ms / self.step_ms if self.step_ms and first.step_ms else None


def _versions_of(subject: LoadedResult) -> Iterator[_Version]:
    """One of a run or trace; each rung of a tune; each measured point of a bench."""
    document = subject.document
    if subject.kind == "run":
        yield _run_version(subject.name, document)
    elif subject.kind == "trace":
        parts = document["breakdown_ns"]
        use = 1 - parts["idle"] / parts["wall"] if parts["idle"] is not None else None
        yield _Version(subject.name, document["steps"]["mean_ms"], None, use, None)
    elif subject.kind == "tune":
        yield _tune_version("as it is", document["baseline"])
        for rung in document["ladder"]:
            yield _tune_version(f"+ {rung['label']}", rung)
    else:
        for point in document["points"]:
            if point["status"] == "ok":
                yield _bench_version(point)


def _run_version(name: str, document: Document) -> _Version:
    steps, gpu = document["steps"], document["gpu"] or {}
    fixes = [
        one["name"] + (f"={one['value']}" if one["value"] else "")
        for one in document["fixes"]
        if one["state"] == "applied"
    ]
    program = display_path(document["run"]["program"], document["run"]["program"])
    label = " ".join([program, *(f"+ {fix}" for fix in fixes), f"({name})"])
    peak = gpu.get("peak_allocated_bytes") or document["memory"]["peak_bytes"]
    rate, use = steps["samples_per_s"], gpu.get("busy_fraction")
    return _Version(label, steps["mean_ms"], rate, use, peak)


def _tune_version(name: str, one: Document) -> _Version:
    keys = ("step_ms", "samples_per_s", "gpu_busy", "peak_memory_bytes")
    return _Version(name, *(one.get(key) for key in keys))


def _bench_version(one: Document) -> _Version:
    variant = one.get("variant") or f"{one.get('workers')} workers"
    name = f"{one['model']} {one['mode']} on {one['device']}, batch {one['batch']:,}, {variant}"
    step = one.get("mean_ms")
    keys = ("samples_per_s", "gpu_busy", "peak_memory_bytes")
    return _Version(name, step, *(one.get(key) for key in keys))


_WIDTH = 88
_KERNELS = 20


def deliverables(subjects: Sequence[LoadedResult], compared: Comparison | None) -> str:
    """All of it as plain text: `baseline_analysis.txt`. `compared`: of two, None of others."""
    parts = [baseline_analysis(one) for one in subjects if "baseline" in one.document]
    parts = [part for part in parts if part]
    table = versions_table(subjects)
    if len(table.rows) > 1 or not parts:
        parts.append("\n".join(["Versions", "========", "", *plain_table(table)]))
    if compared is not None and compared.kernels:
        parts.append("\n".join(_kernels(compared.kernels)))
    return "\n\n\n".join(parts) + "\n"


def baseline_analysis(subject: LoadedResult) -> str:
    """The usual questions answered, then the findings; empty of a tune or bench."""
    document = subject.document
    if not isinstance(document["baseline"], list):
        return ""
    title = f"Baseline analysis: {safe(subject.name)}"
    lines = [title, "=" * len(title), ""]
    for number, one in enumerate(distinct_answers(document["baseline"]), start=1):
        lines += _wrapped(f"{number}. {one['question']}", "   ")
        lines += _wrapped(f"   {one['answer']}", "   ")
        lines.append("")
    lines += ["Findings, largest gain first", "----------------------------", ""]
    for number, one in enumerate(document["findings"], start=1):
        lines += _wrapped(f"{number}. {one['title']}{_gain(one)}", "   ")
        lines += _wrapped(f"   {one['why']}", "   ") if one["why"] else []
        lines += _wrapped(f"   To do: {one['advice']}", "   ") if one["advice"] else []
        lines.append("")
    if not document["findings"]:
        lines.append("No change is known that would save 2% of a step.")
    return "\n".join(lines).rstrip()


def _gain(one: Document) -> str:
    told = one["predicted"]
    return f" (predicted {told['speedup']:.2f}×)" if told else ""


def _wrapped(text: str, later: str) -> list[str]:
    lead = text[: len(text) - len(text.lstrip())]
    return wrap(safe(text.lstrip()), _WIDTH, initial_indent=lead, subsequent_indent=later) or [""]


def versions_table(subjects: Sequence[LoadedResult]) -> Table:
    """Version × GPU use × throughput × speedup: of each run, or of a tune's or bench's variants."""
    found = [version for subject in subjects for version in _versions_of(subject)]
    columns = (
        Column("version"), Column("GPU use", number=True, percent=True),
        Column("throughput", "samples/s", number=True, digits=4),
        Column("step", "ms", number=True), Column("speedup", "×", number=True),
        Column("peak memory", "MiB", number=True, digits=4),
    )  # fmt: skip
    rows = tuple(_row(version, found[0]) for version in found)
    return Table("versions", columns, rows, "Versions")


def _row(one: _Version, first: _Version) -> tuple[Cell, ...]:
    memory = None if one.memory_bytes is None else one.memory_bytes * 2.0**-20
    return (one.name, one.gpu_use, one.samples_per_s, one.step_ms, one.speedup_to(first), memory)


def plain_table(table: Table) -> Iterator[str]:
    """Lines of a table as plain text."""
    rows = [[heading(column) for column in table.columns]]
    rows += [
        [
            safe(format_cell(value, column))
            for value, column in zip(values, table.columns, strict=True)
        ]
        for values in table.rows
    ]
    widths = [max(len(line[at]) for line in rows) for at in range(len(table.columns))]
    for line in rows:
        cells = zip(line, widths, table.columns, strict=True)
        yield "  ".join(
            cell.rjust(wide) if column.number else cell.ljust(wide) for cell, wide, column in cells
        ).rstrip()


def _kernels(kernels: KernelComparison) -> list[str]:
    """Before and after, what changed most first."""
    title = f"{kernels.unit.capitalize()} before and after, ms a step"
    columns = (
        Column("before", number=True), Column("after", number=True),
        Column("difference", number=True), Column("count"), Column("name"),
    )  # fmt: skip
    rows = tuple(
        (
            one.base_ms, one.other_ms, one.delta_ms,
            f"{one.base_count} → {one.other_count}", one.name[:100],
        )
        for one in kernels.rows[:_KERNELS]
    )  # fmt: skip
    whole = f"Together {format_number(kernels.base_ms)} → {format_number(kernels.other_ms)} ms."
    return [title, "=" * len(title), "", *plain_table(Table("k", columns, rows)), "", whole]


def story_of(subject: LoadedResult) -> Story:
    """By its kind: `story_of_<kind>` in `story/<kind>/story.py`."""
    module = import_module(f"stepscope.report.story.{subject.kind}.story")
    build: Callable[[LoadedResult], Story] = getattr(module, f"story_of_{subject.kind}")
    return build(subject)


def story_of_several(subjects: Sequence[LoadedResult], compared: Comparison | str | None) -> Story:
    """`compared`: the comparison of two, why there is none, or None of more than two."""
    stories = [story_of(subject) for subject in subjects]
    head = [Section("versions", "Version by version", (versions_table(subjects),))]
    verdict = " · ".join(f"{story.title}: {story.verdict}" for story in stories)
    if isinstance(compared, str):
        missing = Missing("The two are not compared.", compared)
        head.append(Section("against", "Before and after", (missing,)))
    elif compared is not None:
        against = comparison_story(compared)
        verdict = against.verdict
        head += [_numbered(part, "against", against.title) for part in against.sections]
    parts = [
        _numbered(part, str(number), _title(story, subject, stories))
        for number, (story, subject) in enumerate(zip(stories, subjects, strict=True), start=1)
        for part in story.sections
    ]
    return Story(
        title=" and ".join(_title(*one, stories) for one in zip(stories, subjects, strict=True)),
        verdict=verdict,
        subtitle=" | ".join(story.subtitle for story in stories),
        sections=(*head, *parts),
        kind="comparison",
    )


def _title(story: Story, subject: LoadedResult, stories: Sequence[Story]) -> str:
    """What it is called; by its id where several are called the same."""
    alike = [one.title for one in stories].count(story.title) > 1
    return subject.name if alike else story.title


def _numbered(section: Section, number: str, title: str) -> Section:
    """With ids of its own, so that sections of several stories do not meet."""
    blocks = tuple(_block(block, number) for block in section.blocks)
    return Section(f"{number}-{section.id}", f"{section.title} — {title}", blocks)


def _block(block: Block, number: str) -> Block:
    if isinstance(block, Table | Chart):
        return replace(block, id=f"{number}-{block.id}")
    if isinstance(block, Card):
        return replace(block, id=f"{number}-{block.id}", at_ns=None, search="")
    if isinstance(block, TimelineView):
        what = "The timeline is left out of a report of several results."
        return Missing(what, "stepscope report of this one alone draws it.")
    return block
