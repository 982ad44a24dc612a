"""A trace on a terminal: where the device's time goes, why it is idle, how far to trust it."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import bar, title
from stepscope.report.findings import finding_lines, rest_lines
from stepscope.report.idle import IDLE_CAUSES, idle_place
from stepscope.report.lines import console_for, show_lines
from stepscope.report.names import STEPS_HOW, WORK
from stepscope.report.quality import quality_notes
from stepscope.report.text import milliseconds, plural, safe, shortened, size
from stepscope.report.trace_words import remarks

Document = dict[str, Any]

_COLOURS = {"compute": "green", "exposed_communication": "magenta", "exposed_copy": "yellow"}
_MOSTLY = 0.5
_WIDEST = 80


def print_trace(document: Document, stream: IO[str], everything: bool = False) -> None:
    """The screen of `stepscope analyze`; `everything` for its `--all`."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    lines = [*_title(document, width), Text(), _headline(document), Text()]
    short = bool(document.get("findings")) and not everything
    lines += _bars(document, width)
    lines += finding_lines(document, width, everything, "add --all")
    lines += idle_lines(document)
    if not short:
        lines += _device(document)
        lines += _host(document)
        lines += _remarks(document)
    lines += rest_lines(document, width) if everything else []
    told = [*quality_notes(document), *document.get("problems", ())]
    notes = [Text(f"note: {safe(note)}", "yellow") for note in told]
    lines += [Text(), *notes] if notes else []
    lines += _next(document)
    show_lines(console, [Text(), *lines], width)


def _title(document: Document, width: int) -> list[Text]:
    source, steps = document["source"], document["steps"]
    how = f" ({STEPS_HOW[steps['how']]})" if STEPS_HOW[steps["how"]] else ""
    count = plural(steps["count"], "step") if steps["how"] != "whole" else "no steps found"
    rank = f"rank {source['rank']}" if source["rank"] is not None else None
    of = f" of {source['world_size']}" if rank and source["world_size"] else ""
    parts = [
        shortened(safe(source["file"]), width - 14),
        count + how,
        safe(source["device"]) if source["device"] else None,
        rank + of if rank else None,
    ]
    return title([part for part in parts if part], width)


def _headline(document: Document) -> Text:
    steps, parts_ns = document["steps"], document["breakdown_ns"]
    unit = "step" if steps["how"] != "whole" else "recording"
    parts = [f"{milliseconds(steps['mean_ms'])} ms per {unit}"]
    if parts_ns["idle"] is not None and parts_ns["wall"]:
        parts.append(f"GPU busy {1 - parts_ns['idle'] / parts_ns['wall']:.0%}")
        parts.append(f"{document['launch']['kernels'] / steps['count']:,.0f} kernels")
    roofline = document["roofline"]
    if roofline and roofline["step"]["mfu"] is not None:
        parts.append(f"MFU {roofline['step']['mfu']:.0%}")
    for use in document["memory"] or []:
        if use["device"] is not None:
            parts.append(f"peak {size(use['peak_bytes'])}")
            break
    return Text("  " + "   ".join(parts), "bold")


def _bars(document: Document, width: int) -> list[Text]:
    parts, steps = document["breakdown_ns"], document["steps"]["count"]
    if parts["idle"] is None:
        return [Text("  no device in this recording: what follows is the host's", "dim")]
    wall = parts["wall"] / steps / 1e6
    lines = [
        bar(f"{label:<15}", parts[key] / steps / 1e6, wall, _COLOURS[key], width)
        for key, label in WORK.items()
        if parts[key]
    ]
    return [*lines, bar(f"{'idle':<15}", parts["idle"] / steps / 1e6, wall, "red", width)]


def idle_lines(document: Document) -> list[Text]:
    """Causes of idle time that are worth a line, with the place on the host."""
    idle, wall = document["idle_ns"], document["breakdown_ns"]["wall"]
    known = [(ns, cause) for cause, ns in idle.items() if ns and ns > 0.01 * wall]
    if not known:
        return []
    steps = document["steps"]["count"]
    causes = _busiest(document)["idle"]
    lines = [Text(), Text("Why the GPU is idle", "bold"), Text()]
    for number, (ns, cause) in enumerate(sorted(known, reverse=True), start=1):
        lines.append(
            Text.assemble(
                f" {number}  {IDLE_CAUSES[cause]:<31}",
                (f"{milliseconds(ns / steps / 1e6):>7} ms  {ns / wall:>4.0%}", "bold"),
                f"  {idle_place(causes[cause]['places'])}",
            )
        )
    return lines


def _busiest(document: Document) -> Document:
    devices: list[Document] = document["devices"]
    return max(devices, key=lambda one: one["breakdown_ns"]["wall"] - one["breakdown_ns"]["idle"])


def _device(document: Document) -> list[Text]:
    if not document["kernels"]:
        return []
    groups = document["by"]["category"][:4]
    shares = " · ".join(f"{safe(group['name'])} {group['share']:.0%}" for group in groups)
    operators = document["operators"]
    covered = sum(operator["share"] for operator in operators)
    rows = [(one["name"], one["device_ns"], one["share"]) for one in operators[:6]]
    if covered < _MOSTLY:  # replayed from graphs, or recorded without operators
        rows = [(one["name"], one["total_ns"], one["share"]) for one in document["kernels"][:6]]
    lines = [Text(), Text("What the GPU does", "bold"), Text(f"    {shares}"), Text()]
    for number, (name, ns, share) in enumerate(rows, start=1):
        ms = milliseconds(ns / document["steps"]["count"] / 1e6)
        lines.append(
            Text.assemble(
                f" {number}  {_clipped(safe(name), 31):<31}",
                (f"{ms:>7} ms  {share:>4.0%}", "bold"),
            )
        )
    return lines + _ceilings(document)


def _clipped(name: str, most: int) -> str:
    """A name of at most that length, its beginning kept: operators and kernels tell most there."""
    return name if len(name) <= most else name[: most - 1] + "…"


def _ceilings(document: Document) -> list[Text]:
    """The operators with most time, against what the device could do."""
    roofline = document["roofline"]
    if roofline is None or roofline["ceilings"] is None:
        return []
    rated = [rate for rate in roofline["kinds"] if rate["share"] is not None and rate["bound"]]
    rated.sort(key=lambda rate: -rate["time_ns"])
    if not rated:
        return []
    lines = [Text(), Text(f"Against the ceilings ({roofline['ceilings']['source']})", "bold")]
    for rate in rated[:4]:
        name = f"{_clipped(safe(rate['name']), 28)} {rate['dtype']}"
        share = min(rate["share"], 1.0)
        lines.append(Text(f"    {name:<34} {rate['bound']}-bound, {share:.0%} of what it could be"))
    return lines


def _host(document: Document) -> list[Text]:
    host = document["host"]
    if document["source"]["has"]["device"] or host is None or not host["operators"]:
        return []
    lines = [Text(), Text("What the host does", "bold"), Text()]
    steps = document["steps"]["count"]
    for number, entry in enumerate(host["operators"][:6], start=1):
        lines.append(
            Text(
                f" {number}  {_clipped(safe(entry['name']), 31):<31}"
                f"{milliseconds(entry['self_ns'] / steps / 1e6):>7} ms  {entry['count']:,}×"
            )
        )
    return lines


def _remarks(document: Document) -> list[Text]:
    lines = [Text(f"    {safe(remark)}") for remark in remarks(document)]
    return [Text(), *lines] if lines else []


def _next(document: Document) -> list[Text]:
    file = shortened(safe(document["source"]["file"]), 40)
    return [
        Text(),
        Text(f"Next:  stepscope analyze {file} --json"),
        Text("       … --export events.parquet    every event, for DuckDB, polars, pandas"),
    ]
