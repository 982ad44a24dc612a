"""What courses and reviews ask for: a baseline analysis, versions side by side, two compared."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import Any

from stepscope.report.deliverables_versions import Version, versions
from stepscope.report.finding_words import answered
from stepscope.report.html.numbers import shown
from stepscope.report.story.blocks import Cell, Column, Table
from stepscope.report.subject import Subject
from stepscope.report.tables import heading
from stepscope.report.text import milliseconds, safe

Document = dict[str, Any]
_WIDTH = 88
_KERNELS = 20


def deliverables(subjects: Sequence[Subject], compared: Document | None) -> str:
    """All of it as plain text: `baseline_analysis.txt`. `compared`: of two, None of others."""
    parts = [baseline_analysis(one) for one in subjects if "baseline" in one.document]
    parts = [part for part in parts if part]
    table = versions_table(subjects)
    if len(table.rows) > 1 or not parts:
        parts.append("\n".join(["Versions", "========", "", *plain_table(table)]))
    if compared is not None and compared["kernels"]:
        parts.append("\n".join(_kernels(compared["kernels"])))
    return "\n\n\n".join(parts) + "\n"


def baseline_analysis(subject: Subject) -> str:
    """The usual questions answered, then the findings; empty of a tune or bench."""
    document = subject.document
    if not isinstance(document["baseline"], list):
        return ""
    title = f"Baseline analysis: {safe(subject.name)}"
    lines = [title, "=" * len(title), ""]
    for number, one in enumerate(answered(document["baseline"]), start=1):
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


def versions_table(subjects: Sequence[Subject]) -> Table:
    """Version × GPU use × throughput × speedup: of each run, or of a tune's or bench's variants."""
    found = [version for subject in subjects for version in versions(subject)]
    columns = (
        Column("version"), Column("GPU use", number=True, percent=True),
        Column("throughput", "samples/s", number=True, digits=4),
        Column("step", "ms", number=True), Column("speedup", "×", number=True),
        Column("peak memory", "MiB", number=True, digits=4),
    )  # fmt: skip
    rows = tuple(_row(version, found[0]) for version in found)
    return Table("versions", columns, rows, "Versions")


def _row(one: Version, first: Version) -> tuple[Cell, ...]:
    memory = None if one.memory_bytes is None else one.memory_bytes * 2.0**-20
    return (one.name, one.gpu_use, one.samples_per_s, one.step_ms, one.speedup_to(first), memory)


def plain_table(table: Table) -> Iterator[str]:
    """Lines of a table as plain text."""
    rows = [[heading(column) for column in table.columns]]
    rows += [
        [safe(shown(value, column)) for value, column in zip(values, table.columns, strict=True)]
        for values in table.rows
    ]
    widths = [max(len(line[at]) for line in rows) for at in range(len(table.columns))]
    for line in rows:
        cells = zip(line, widths, table.columns, strict=True)
        yield "  ".join(
            cell.rjust(wide) if column.number else cell.ljust(wide) for cell, wide, column in cells
        ).rstrip()


def _kernels(kernels: Document) -> list[str]:
    """Before and after, what changed most first."""
    title = f"{kernels['unit'].capitalize()} before and after, ms a step"
    columns = (
        Column("before", number=True), Column("after", number=True),
        Column("difference", number=True), Column("count"), Column("name"),
    )  # fmt: skip
    rows = tuple(
        (
            one["base_ms"], one["other_ms"], one["delta_ms"],
            f"{one['base_count']} → {one['other_count']}", one["name"][:100],
        )
        for one in kernels["rows"][:_KERNELS]
    )  # fmt: skip
    whole = f"Together {milliseconds(kernels['base_ms'])} → {milliseconds(kernels['other_ms'])} ms."
    return [title, "=" * len(title), "", *plain_table(Table("k", columns, rows)), "", whole]
