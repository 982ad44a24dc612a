"""A batch-size search on a terminal: the answer, the curve, what changes, the command."""

from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

from rich.text import Text

from stepscope.report.render.terminal.console import console_for, print_lines, title_lines
from stepscope.report.text import format_bytes, format_duration, format_number, plural, safe

Document = dict[str, Any]

FAILED = {"out_of_memory": "out of memory", "timed_out": "timed out", "broke": "broke"}


class CurveColumn(NamedTuple):
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
    return f"{format_bytes(row['memory_bytes'])}{share}"


CURVE_COLUMNS = (
    CurveColumn("batch", lambda row: f"{row['batch']:,}"),
    CurveColumn("samples/s", _value("samples_per_s", format_number)),
    CurveColumn("±", interval),
    CurveColumn("of best", _value("of_best", "{:.0%}".format)),
    CurveColumn("step ms", _value("step_ms", format_number)),
    CurveColumn("memory", _memory),
    CurveColumn("J/sample", _value("energy_j_per_sample", "{:,.3g}".format)),
)


def curve_lines(document: Document, width: int) -> list[Text]:
    """The table: what a size did, and which is the program's, the knee and the largest."""
    rows = document["curve"]
    columns = known_columns(CURVE_COLUMNS, rows)
    widths = [max(len(c.heading), *(len(c.cell(row) or "") for row in rows)) for c in columns]
    heads = (c.heading.rjust(w) for c, w in zip(columns, widths, strict=True))
    lines = [Text("  " + "  ".join(heads), "dim")]
    for row in rows:
        if row["status"] == "ok":
            cells = ((c.cell(row) or "").rjust(w) for c, w in zip(columns, widths, strict=True))
            text = "  " + "  ".join(cells)
        else:
            text = f"  {row['batch']:>{widths[0]},}  {failure_text(row)}"
        told = size_marks(document, row["batch"])
        style = "bold green" if "knee" in told else ("" if row["status"] == "ok" else "yellow")
        marked = f"{text}  {', '.join(told)}" if told else text
        lines.append(Text(cut(marked, width), style))
    return lines


def known_columns(columns: Sequence[CurveColumn], rows: Sequence[Document]) -> list[CurveColumn]:
    """The first, and those that have a value for a size that ran."""
    ran = [row for row in rows if row["status"] == "ok"]
    return [columns[0], *(one for one in columns[1:] if any(map(one.cell, ran)))]


def cut(text: str, most: int) -> str:
    """Text of at most that length, its beginning kept."""
    return text if len(text) <= most else text[: most - 1] + "…"


def failure_text(row: Document) -> str:
    """Why a size has no numbers."""
    word = FAILED.get(row["status"])
    if row["status"] == "out_of_memory":
        return "out of memory"
    why = safe(str(row["why"] or row["status"].replace("_", " ")))
    return f"{word}: {why}" if word else why


def size_marks(document: Document, batch: int) -> list[str]:
    """What a size is: the program's own, the knee, the largest that fits."""
    at, largest = document["knee"], document["largest"]
    bounded = largest is not None and largest["bounded"]
    named = {
        "own": document["own"],
        "knee": at["batch"] if at else None,
        "largest": largest["batch"] if bounded else None,
    }
    return [name for name, value in named.items() if value == batch]


_WIDEST = 80


def print_batch(document: Document, stream: IO[str]) -> None:
    """The screen `stepscope batch` ends with."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    lines = [
        Text(),
        *_title(document, width),
        Text(),
        Text(safe(document["verdict"]), "bold"),
        Text(),
        *curve_lines(document, width),
        Text(),
        *_remarks(document),
        *_training(document),
        *_next(document),
    ]
    print_lines(console, lines, width)


def _title(document: Document, width: int) -> list[Text]:
    torch = document["versions"]["torch"]
    processes = plural(document["processes"], "process").replace("processs", "processes")
    parts = [
        f"batch · {safe(document['program'])}",
        safe(str(document["device_name"] or document["device"].upper())),
        f"torch {safe(str(torch)).partition('+')[0]}" if torch else None,
        f"{processes}, {format_duration(document['seconds'])}",
    ]
    return title_lines([part for part in parts if part], width)


def _remarks(document: Document) -> list[Text]:
    at, largest, stopped = document["knee"], document["largest"], document["stopped"]
    within, headroom = document["within"], document["headroom"]
    lines = []
    if at is not None:
        rule = f"knee: the smallest within {within:.0%} of the best that leaves {headroom:.0%}"
        lines.append(Text(f"{rule} of memory free", "dim"))
    if largest is not None and largest["bounded"]:
        beyond = largest["too_large"]
        share = largest["memory_share"]
        words = f", {share:.0%} of memory" if share is not None else ""
        words += f"; {beyond:,} does not" if beyond is not None else ""
        lines.append(Text(f"largest that fits: {largest['batch']:,}{words}"))
    if stopped is not None:
        lines.append(Text(f"stopped: {safe(stopped['words'])}"))
    if at is not None and at["batch"] == document["own"] == document["curve"][0]["batch"]:
        lines.append(Text(f"smaller ones were not tried: --min {max(1, at['batch'] // 4)}", "dim"))
    return lines + [Text(f"note: {safe(note)}", "yellow") for note in document["notes"]]


def _training(document: Document) -> list[Text]:
    if not document["training"]:
        return []
    head = "A larger batch changes training"
    if document["knee"]["batch"] < document["own"]:
        head = "A smaller batch changes training"
    return [Text(), Text(head, "bold"), *(Text(f"  {safe(w)}") for w in document["training"])]


def _next(document: Document) -> list[Text]:
    if document["command"]:
        return [Text(), Text(f"Run it so:  {safe(document['command'])}")]
    words = " ".join([safe(document["program"]), *map(safe, document["argv"])])
    what = Text("       what else makes it faster?", "dim")
    return [Text(), Text(f"Next:  stepscope tune {words}"), what]
