"""A trace on a terminal, or several ranks: where the device's time goes, why it is idle, who waits
for whom.
"""

from typing import IO, Any

from rich.text import Text

from stepscope.report.render.terminal.console import bar_line, console_for, print_lines, title_lines
from stepscope.report.render.terminal.findings import finding_lines, rest_lines
from stepscope.report.story.phrases import (
    DEVICE_WORK_NAMES,
    IDLE_CAUSES,
    STEP_SOURCES,
    costliest_place,
)
from stepscope.report.story.trace.kernels import trace_remarks
from stepscope.report.story.trace.story import quality_notes
from stepscope.report.text import format_bytes, format_number, keep_end, plural, safe

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
    print_lines(console, [Text(), *lines], width)


def _title(document: Document, width: int) -> list[Text]:
    source, steps = document["source"], document["steps"]
    how = f" ({STEP_SOURCES[steps['how']]})" if STEP_SOURCES[steps["how"]] else ""
    count = plural(steps["count"], "step") if steps["how"] != "whole" else "no steps found"
    rank = f"rank {source['rank']}" if source["rank"] is not None else None
    of = f" of {source['world_size']}" if rank and source["world_size"] else ""
    parts = [
        keep_end(safe(source["file"]), width - 14),
        count + how,
        safe(source["device"]) if source["device"] else None,
        rank + of if rank else None,
    ]
    return title_lines([part for part in parts if part], width)


def _headline(document: Document) -> Text:
    steps, parts_ns = document["steps"], document["breakdown_ns"]
    unit = "step" if steps["how"] != "whole" else "recording"
    parts = [f"{format_number(steps['mean_ms'])} ms per {unit}"]
    if parts_ns["idle"] is not None and parts_ns["wall"]:
        parts.append(f"GPU busy {1 - parts_ns['idle'] / parts_ns['wall']:.0%}")
        parts.append(f"{document['launch']['kernels'] / steps['count']:,.0f} kernels")
    roofline = document["roofline"]
    if roofline and roofline["step"]["mfu"] is not None:
        parts.append(f"MFU {roofline['step']['mfu']:.0%}")
    for use in document["memory"] or []:
        if use["device"] is not None:
            parts.append(f"peak {format_bytes(use['peak_bytes'])}")
            break
    return Text("  " + "   ".join(parts), "bold")


def _bars(document: Document, width: int) -> list[Text]:
    parts, steps = document["breakdown_ns"], document["steps"]["count"]
    if parts["idle"] is None:
        return [Text("  no device in this recording: what follows is the host's", "dim")]
    wall = parts["wall"] / steps / 1e6
    lines = [
        bar_line(f"{label:<15}", parts[key] / steps / 1e6, wall, _COLOURS[key], width)
        for key, label in DEVICE_WORK_NAMES.items()
        if parts[key]
    ]
    return [*lines, bar_line(f"{'idle':<15}", parts["idle"] / steps / 1e6, wall, "red", width)]


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
                (f"{format_number(ns / steps / 1e6):>7} ms  {ns / wall:>4.0%}", "bold"),
                f"  {costliest_place(causes[cause]['places'])}",
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
        ms = format_number(ns / document["steps"]["count"] / 1e6)
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
                f"{format_number(entry['self_ns'] / steps / 1e6):>7} ms  {entry['count']:,}×"
            )
        )
    return lines


def _remarks(document: Document) -> list[Text]:
    lines = [Text(f"    {safe(remark)}") for remark in trace_remarks(document)]
    return [Text(), *lines] if lines else []


def _next(document: Document) -> list[Text]:
    file = keep_end(safe(document["source"]["file"]), 40)
    return [
        Text(),
        Text(f"Next:  stepscope analyze {file} --json"),
        Text("       … --export events.parquet    every event, for DuckDB, polars, pandas"),
    ]


def print_ranks(document: dict[str, Any], stream: IO[str]) -> None:
    """The screen of `stepscope analyze` for a folder of ranks."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    ranks, comparison = document["ranks"], document["comparison"]
    of = f" of {comparison['world_size']}" if comparison["world_size"] else ""
    device = next((one["source"]["device"] for one in ranks if one["source"]["device"]), None)
    parts = [plural(len(ranks), "rank") + of, *([safe(device)] if device else [])]
    lines = [
        *title_lines(parts, width),
        Text(),
        *_table(comparison["rows"]),
        *_lateness(comparison),
    ]
    lines.append(Text())
    for note in comparison["notes"]:
        lines.append(Text(f"note: {safe(note)}", "yellow"))
    for one in ranks:
        name = keep_end(safe(one["source"]["file"]), 40)
        lines += [Text(f"note: {name}: {safe(note)}", "yellow") for note in quality_notes(one)]
    lines += [Text(), Text("Next:  stepscope analyze FILE    one of them, in full")]
    print_lines(console, [Text(), *lines], width)


def _table(rows: list[dict[str, Any]]) -> list[Text]:
    head = f"  {'rank':>4}  {'steps':>5}  {'ms a step':>9}  {'busy':>5}  {'compute':>7}"
    lines = [Text(f"{head}  {'communicates':>12}  {'exposed':>7}  {'idle':>5}", "bold")]
    for row in rows:
        lines.append(
            Text(
                f"  {_number(row['rank']):>4}  {row['steps']:>5}"
                f"  {format_number(row['step_mean_ns'] / 1e6):>9}"
                f"  {_percent_or_dash(row['busy_share']):>5}"
                f"  {_percent_or_dash(row['compute_share']):>7}"
                f"  {_percent_or_dash(row['communication_share']):>12}"
                f"  {_percent_or_dash(row['exposed_communication_share']):>7}"
                f"  {_percent_or_dash(row['idle_share']):>5}"
            )
        )
    return lines


def _number(rank: int | None) -> str:
    return "–" if rank is None else str(rank)


def _percent_or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def _lateness(comparison: dict[str, Any]) -> list[Text]:
    late = [one for one in comparison["lateness"] if one["caused_ns"]]
    if not late:
        return []
    lines = [Text(), Text("Who comes last to a collective", "bold")]
    for one in late[:4]:
        lines.append(
            Text(
                f"    rank {one['rank']}: last {one['last']:,} of {comparison['matched']:,} times,"
                f" others waited {format_number(one['caused_ns'] / 1e6)} ms for it"
            )
        )
    return lines
