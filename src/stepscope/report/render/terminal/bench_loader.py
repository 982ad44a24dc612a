"""A loader grid on a terminal and as Markdown: the setting to use, then all that was measured."""

from csv import DictWriter
from io import StringIO
from textwrap import wrap
from typing import IO, Any

from rich.text import Text

from stepscope.report.render.terminal.console import console_for, print_lines, title_lines
from stepscope.report.text import format_bytes, format_number, keep_end, plural, safe

Document = dict[str, Any]
_WIDEST = 80
_COLUMNS = 6  # numbers of workers side by side
_WORDS = {"failed": "failed", "out_of_memory": "memory", "timed_out": "time", "missing": "–"}


def print_loader(document: Document, stream: IO[str]) -> None:
    """The screen of `stepscope bench loader`."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    loader, points = document["loader"], document["points"]
    lines = [*_title(document, width), Text(), *_answer(loader)]
    lines += _tables(points, loader)
    lines += _chosen(loader)
    lines += _failures(points)
    notes = [*_unstable(points), *document["notes"]]
    lines += [Text(), *(Text(f"note: {safe(note)}", "yellow") for note in notes)] if notes else []
    lines += _next(loader)
    print_lines(console, [Text(), *lines], width)


def markdown_loader(document: Document) -> str:
    """All settings as one table, and what to use."""
    loader = document["loader"]
    lines = [
        f"**{plain(document['points'][0]['model'])}** on {plain(_where(document))}",
        "",
        "| batch | workers | pin | prefetch | samples/s | first batch ms | memory | cores |",
        "|--:|--:|---|--:|--:|--:|--:|--:|",
    ]
    for point in document["points"]:
        cells = [
            str(point["batch"]),
            str(point["workers"]),
            "on" if point["pin"] else "off",
            _dash(point["prefetch"]),
            _rate(point),
            _dash(point["first_batch_ms"], format_number),
            _dash(point["peak_memory_bytes"], format_bytes),
            _dash(point["cores"], "{:.1f}".format),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    if loader["line"]:
        lines += ["", f"To use: `{loader['line']}`{_gain(loader)}"]
    return "\n".join(lines) + "\n"


def csv_loader(document: Document) -> str:
    """A row per setting, with all its numbers."""
    points = document["points"]
    text = StringIO()
    writer = DictWriter(text, list(points[0]), lineterminator="\n")
    writer.writeheader()
    for point in points:
        writer.writerow({**point, "fixes": "none", "why": safe(point["why"] or "")})
    return text.getvalue()


def _title(document: Document, width: int) -> list[Text]:
    source = document["loader"]["dataset"] or {}
    about = [safe(source["kind"])] if source.get("kind") else []
    if source.get("samples") is not None:
        about.append(plural(source["samples"], "sample"))
    if source.get("sample_bytes"):
        about.append(f"{format_bytes(source['sample_bytes'])} each")
    name = keep_end(safe(document["points"][0]["model"]), 40)
    return title_lines([f"bench loader · {name}", *about, safe(_where(document))], width)


def _where(document: Document) -> str:
    loader = document["loader"]
    cores = plural(int(loader["usable_cores"]), "usable core")
    return f"{loader['device_name'] or document['points'][0]['device']}, {cores}"


def _answer(loader: Document) -> list[Text]:
    best, simplest = loader["best"], loader["simplest"]
    if best is None:
        return [Text("  nothing was measured", "bold")]
    lines = [_line(simplest, f"{_words(simplest)}{_gain(loader)}", "bold")]
    if simplest["key"] != best["key"]:
        more = best["samples_per_s"] / simplest["samples_per_s"] - 1
        lines.append(_line(best, f"{_words(best)}: the best, {more:.0%} more", ""))
    return lines


def _line(point: Document, words: str, style: str) -> Text:
    return Text.assemble((f"  {_rate(point)} samples/s   ", style), words)


def _gain(loader: Document) -> str:
    gain = loader["speedup"]
    if loader["default"] is None:
        return ""
    return f", {gain['ratio']:.2f}× the default" if gain else ", the default loader"


def _words(point: Document) -> str:
    parts = [f"batch {point['batch']}", plural(point["workers"], "worker")]
    parts += ["pinned"] if point["pin"] else []
    parts += [f"prefetch {point['prefetch']}"] if point["prefetch"] not in (None, 2) else []
    return ", ".join(parts)


def _tables(points: list[Document], loader: Document) -> list[Text]:
    """Samples/s: a row per batch, pinning and prefetch, a column per number of workers."""
    workers = sorted({point["workers"] for point in points})
    cells = {(p["batch"], p["pin"], p["prefetch"], p["workers"]): p for p in points}
    ahead = sorted({p["prefetch"] for p in points if p["prefetch"] is not None}) or [None]
    lines = [Text(), Text("Samples/s by number of workers", "bold"), Text()]
    for at in range(0, len(workers), _COLUMNS):
        counts = workers[at : at + _COLUMNS]
        head = "".join(f"{count:>9}" for count in counts)
        lines.append(Text(f"  batch  pin  prefetch{head}"))
        for batch, pin, prefetch in _rows(points, ahead):
            # Without workers nothing is prefetched: those numbers stand in the first row.
            first = prefetch == ahead[0]
            row = [
                cells.get((batch, pin, prefetch if count else None, count))
                for count in (counts if first else filter(None, counts))
            ]
            if any(row):
                on = "on" if pin else "off"
                line = Text(f"  {batch:>5}  {on:<3}  {_dash(prefetch):>8}")
                line.append(" " * 9 * (len(counts) - len(row)))
                lines.append(Text.assemble(line, *(_cell(point, loader) for point in row)))
    return lines


def _rows(points: list[Document], ahead: list[Any]) -> list[tuple[int, bool, Any]]:
    pairs = dict.fromkeys((point["batch"], point["pin"]) for point in points)
    return [(batch, pin, prefetch) for batch, pin in sorted(pairs) for prefetch in ahead]


def _cell(point: Document | None, loader: Document) -> tuple[str, str]:
    if point is None:
        return f"{'':>9}", ""
    chosen = loader["simplest"] is not None and point["key"] == loader["simplest"]["key"]
    return f"{_rate(point):>9}", "bold green" if chosen else ""


def _chosen(loader: Document) -> list[Text]:
    """What the settings named above cost, beside the default."""
    rows = [(name, loader[name]) for name in ("best", "simplest", "default") if loader[name]]
    if not rows:
        return []
    head = f"{'samples/s':>10}  {'first batch':>11}  {'memory':>8}  {'cores busy':>10}"
    lines = [Text(), Text(f"  {'':<31}{head}", "bold")]
    seen = set()
    for name, point in rows:
        if point["key"] in seen:
            continue
        seen.add(point["key"])
        label = f"{name}: {_words(point)}"
        lines.append(
            Text(
                f"  {label if len(label) <= 31 else label[:30] + '…':<31}{_rate(point):>10}"
                f"  {_dash(point['first_batch_ms'], format_number) + ' ms':>11}"
                f"  {_dash(point['peak_memory_bytes'], format_bytes):>8}"
                f"  {_dash(point['cores'], '{:.1f}'.format):>10}"
            )
        )
    return lines


def _failures(points: list[Document]) -> list[Text]:
    bad = [point for point in points if point["status"] not in ("ok", "missing")]
    if not bad:
        return []
    lines = [Text(), Text("What did not work", "bold")]
    lines += [Text(f"  {_words(p)}: {safe(p['why'] or p['status'])}", "red") for p in bad[:5]]
    more = len(bad) - 5
    return [*lines, Text(f"  … and {more} more")] if more > 0 else lines


def _unstable(points: list[Document]) -> list[str]:
    return [f"{_words(p)}: {p['unstable_why']}" for p in points if p["unstable"]][:3]


def _next(loader: Document) -> list[Text]:
    if loader["line"] is None:
        return []
    simplest = loader["simplest"]
    fixes = [f"--fix workers={simplest['workers']}"] if simplest["workers"] else []
    fixes += ["--fix pin"] if simplest["pin"] else []
    lines = [Text(), Text("Write it so:")]
    lines += [Text(f"  {part}") for part in _call(loader["line"])]
    if fixes:
        lines += [Text(), Text(f"Next:  stepscope run {' '.join(fixes)} train.py")]
    return lines


def _call(line: str) -> list[str]:
    """The call on lines of the screen, as one would break it."""
    head, _, rest = line.partition("(")
    parts = wrap(rest, _WIDEST - len(head) - 4)
    return [f"{head}({parts[0]}", *(" " * (len(head) + 1) + part for part in parts[1:])]


def _rate(point: Document) -> str:
    if point["samples_per_s"] is None or point["status"] != "ok":
        return _WORDS.get(point["status"], "failed")
    return format_number(point["samples_per_s"])


def _dash(value: Any, show: Any = str) -> str:
    return "–" if value is None else str(show(value))


def plain(text: str) -> str:
    """Text that Markdown shows as it stands."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>|#" else c for c in safe(text))
