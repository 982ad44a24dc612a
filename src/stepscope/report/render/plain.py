"""Results as plain text: key questions answered, findings, versions side by side."""

from collections.abc import Sequence
from textwrap import wrap

from stepscope.record.units import capitalized, format_number
from stepscope.report.story.blocks import Column, Table
from stepscope.report.story.findings import distinct_answers
from stepscope.report.story.narrator import versions_table
from stepscope.report.story.phrases import NO_BOTTLENECK
from stepscope.report.text import aligned_rows, safe
from stepscope.results.comparison import Comparison, KernelComparison
from stepscope.results.load import LoadedResult

_WIDTH = 88
_KERNELS = 20


def plain_report(subjects: Sequence[LoadedResult], compared: Comparison | None) -> str:
    """The whole report as plain text: `baseline_analysis.txt`. `compared`: the comparison of two
    results, or None."""
    parts = [_baseline_analysis(one) for one in subjects if "baseline" in one.document]
    parts = [part for part in parts if part]
    table = versions_table(subjects)
    if len(table.rows) > 1 or not parts:
        parts.append("\n".join(["Versions", "========", "", *aligned_rows(table)]))
    if compared is not None and compared.kernels:
        parts.append("\n".join(_kernels(compared.kernels)))
    return "\n\n\n".join(parts) + "\n"


def _baseline_analysis(subject: LoadedResult) -> str:
    """Answers to the key questions, then the findings; empty for a tune or bench."""
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
        told = one["predicted"]
        gain = f" (predicted {told['speedup']:.2f}×)" if told else ""
        lines += _wrapped(f"{number}. {one['title']}{gain}", "   ")
        lines += _wrapped(f"   {one['why']}", "   ") if one["why"] else []
        lines += _wrapped(f"   To do: {one['advice']}", "   ") if one["advice"] else []
        lines.append("")
    if not document["findings"]:
        lines.append(NO_BOTTLENECK)
    return "\n".join(lines).rstrip()


def _wrapped(text: str, later: str) -> list[str]:
    lead = text[: len(text) - len(text.lstrip())]
    return wrap(safe(text.lstrip()), _WIDTH, initial_indent=lead, subsequent_indent=later) or [""]


def _kernels(kernels: KernelComparison) -> list[str]:
    """Kernels before and after, largest change first."""
    title = f"{capitalized(kernels.unit)} before and after, ms per step"
    table = Table.of(
        "kernels",
        "",
        kernels.rows[:_KERNELS],
        (Column.numeric("before"), lambda one: one.base_ms),
        (Column.numeric("after"), lambda one: one.other_ms),
        (Column.numeric("difference"), lambda one: one.delta_ms),
        (Column("count"), lambda one: f"{one.base_count} → {one.other_count}"),
        (Column("name"), lambda one: one.name[:100]),
    )
    whole = f"Total {format_number(kernels.base_ms)} → {format_number(kernels.other_ms)} ms."
    return [title, "=" * len(title), "", *aligned_rows(table), "", whole]
