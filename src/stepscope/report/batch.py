"""The search for a batch size on a terminal: the answer, the curve, what changes, the command."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import title
from stepscope.report.batch_rows import curve_lines
from stepscope.report.lines import console_for, show_lines
from stepscope.report.text import plural, safe, seconds

Document = dict[str, Any]

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
    show_lines(console, lines, width)


def _title(document: Document, width: int) -> list[Text]:
    torch = document["versions"]["torch"]
    processes = plural(document["processes"], "process").replace("processs", "processes")
    parts = [
        f"batch · {safe(document['program'])}",
        safe(str(document["device_name"] or document["device"].upper())),
        f"torch {safe(str(torch)).partition('+')[0]}" if torch else None,
        f"{processes}, {seconds(document['seconds'])}",
    ]
    return title([part for part in parts if part], width)


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
