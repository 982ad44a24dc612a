"""A comparison as Markdown: for a pull request or the summary of a pipeline."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from stepscope.compare.why import signed
from stepscope.report import compare_words as words
from stepscope.report.bench_markdown import code, row, text
from stepscope.report.names import PHASES
from stepscope.report.text import milliseconds

Document = dict[str, Any]
_MOST_KERNELS: Final = 15
_MARKS: Final = {"FASTER": "🟢", "SLOWER": "🔴", "SAME": "⚪", "UNCLEAR": "🟡"}


def markdown(document: Document) -> str:
    """The whole page; ends with a line feed."""
    base, other = (code(words.names(document[side])) for side in ("base", "other"))
    mark = _MARKS[document["verdict"]]
    parts = [
        f"## {mark} {document['verdict']} {text(words.headline(document))}",
        f"{other} against {base} — {words.gate(document)}",
        _bullets(document),
        _items(document),
        _phases(document["phases"]),
        _kernels(document["kernels"]),
        _settings("Configuration", document["configuration"]),
        _settings("Environment", document["environment"]),
        _notes(document),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _bullets(document: Document) -> str:
    told = [text(one) for one in document["why"]]
    told += [text(one) for one in words.facts(document)]
    return "\n".join(f"- {one}" for one in told)


def _items(document: Document) -> str:
    rows = [
        (
            text(item["label"] or "step"),
            milliseconds(item["base_ms"]),
            milliseconds(item["other_ms"]),
            words.change(item),
            words.interval(item),
            item["verdict"],
        )
        for item in document["items"]
    ]
    heads = ("", "base ms", "other ms", "change", "95%", "verdict")
    return _table(heads, rows, numbers=(1, 2, 3))


def _phases(rows: Sequence[Document]) -> str:
    cells = [
        (
            PHASES.get(one["name"], text(one["name"])),
            milliseconds(one["base_ms"]),
            milliseconds(one["other_ms"]),
            signed(one["delta_ms"]),
            f"{one['base_share']:.0%} → {one['other_share']:.0%}",
        )
        for one in rows
    ]
    return _table(("phase", "base ms", "other ms", "change ms", "share"), cells, (1, 2, 3))


def _kernels(kernels: Document | None) -> str:
    """Those that changed most; the last line sums up all others."""
    changed = [one for one in (kernels or {}).get("rows", ()) if one["change"] != "same"]
    if kernels is None or not changed:
        return ""
    shown = changed[:_MOST_KERNELS]
    cells = [
        (
            code(one["name"][:80]),
            "" if one["operator"] == one["name"] else text(one["operator"] or ""),
            PHASES.get(one["phase"], one["phase"]),
            one["change"],
            f"{one['base_count']} → {one['other_count']}",
            signed(one["delta_ms"]),
        )
        for one in shown
    ]
    rest = kernels["delta_ms"] - sum(one["delta_ms"] for one in shown)
    counts = f"{kernels['base_count']} → {kernels['other_count']}"
    cells.append(("all others", "", "", "", "", signed(rest)))
    cells.append(("**together**", "", "", "", counts, signed(kernels["delta_ms"])))
    noun = kernels["unit"].removesuffix("s")
    return _table((noun, "operator", "phase", "", "count", "change ms"), cells, (4, 5))


def _settings(title: str, rows: Sequence[Document]) -> str:
    cells = [
        (text(one["what"]), text(words.value(one["base"])), text(words.value(one["other"])))
        for one in rows
    ]
    return _table((title, "base", "other"), cells, ())


def _notes(document: Document) -> str:
    told = [*document["notes"], *filter(None, [words.unclear(document)])]
    return "\n".join(f"> {text(note)}  " for note in told)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int]) -> str:
    lines = [row(cells) for cells in rows]
    if not lines:
        return ""
    rule = row("---:" if place in numbers else "---" for place in range(len(heads)))
    return "\n".join([row(heads), rule, *lines])
