"""The curve of a search for a batch size: a row for each size."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from stepscope.report.bench_columns import number
from stepscope.report.text import milliseconds, safe, size

Document = dict[str, Any]

FAILED = {"out_of_memory": "out of memory", "timed_out": "timed out", "broke": "broke"}


class Column(NamedTuple):
    """A column without any value is left out."""

    heading: str
    cell: Callable[[Document], str | None]


def interval(row: Document) -> str | None:
    """Half of the 95% interval as a share of the middle; None from a single process."""
    if row["low"] is None or row["high"] is None:
        return None
    share = (row["high"] - row["low"]) / 2 / row["samples_per_s"]
    if share >= 1:
        return "±>100%"
    return f"±{share:.1%}" if share < 0.0995 else f"±{share:.0%}"


def _value(key: str, show: Callable[[float], str]) -> Callable[[Document], str | None]:
    return lambda row: None if row[key] is None else show(row[key])


def _memory(row: Document) -> str | None:
    if row["memory_bytes"] is None:
        return None
    share = "" if row["memory_share"] is None else f" {row['memory_share']:>4.0%}"
    return f"{size(row['memory_bytes'])}{share}"


COLUMNS = (
    Column("batch", lambda row: f"{row['batch']:,}"),
    Column("samples/s", _value("samples_per_s", milliseconds)),
    Column("±", interval),
    Column("of best", _value("of_best", "{:.0%}".format)),
    Column("step ms", _value("step_ms", milliseconds)),
    Column("memory", _memory),
    Column("J/sample", _value("energy_j_per_sample", number)),
)


def curve_lines(document: Document, width: int) -> list[Text]:
    """The table: what a size did, and which is the program's, the knee and the largest."""
    rows = document["curve"]
    columns = used(COLUMNS, rows)
    widths = [max(len(c.heading), *(len(c.cell(row) or "") for row in rows)) for c in columns]
    heads = (c.heading.rjust(w) for c, w in zip(columns, widths, strict=True))
    lines = [Text("  " + "  ".join(heads), "dim")]
    for row in rows:
        if row["status"] == "ok":
            cells = ((c.cell(row) or "").rjust(w) for c, w in zip(columns, widths, strict=True))
            text = "  " + "  ".join(cells)
        else:
            text = f"  {row['batch']:>{widths[0]},}  {failed_words(row)}"
        told = marks(document, row["batch"])
        style = "bold green" if "knee" in told else ("" if row["status"] == "ok" else "yellow")
        marked = f"{text}  {', '.join(told)}" if told else text
        lines.append(Text(cut(marked, width), style))
    return lines


def used(columns: Sequence[Column], rows: Sequence[Document]) -> list[Column]:
    """The first, and those that have a value for a size that ran."""
    ran = [row for row in rows if row["status"] == "ok"]
    return [columns[0], *(one for one in columns[1:] if any(map(one.cell, ran)))]


def cut(text: str, most: int) -> str:
    """Text of at most that length, its beginning kept."""
    return text if len(text) <= most else text[: most - 1] + "…"


def failed_words(row: Document) -> str:
    """Why a size has no numbers."""
    word = FAILED.get(row["status"])
    if row["status"] == "out_of_memory":
        return "out of memory"
    why = safe(str(row["why"] or row["status"].replace("_", " ")))
    return f"{word}: {why}" if word else why


def marks(document: Document, batch: int) -> list[str]:
    """What a size is: the program's own, the knee, the largest that fits."""
    at, largest = document["knee"], document["largest"]
    bounded = largest is not None and largest["bounded"]
    named = {
        "own": document["own"],
        "knee": at["batch"] if at else None,
        "largest": largest["batch"] if bounded else None,
    }
    return [name for name, value in named.items() if value == batch]
