"""A run on a terminal: the answer first, one screen, the next command last."""

import os
from typing import IO, Any

from rich.text import Text

from stepscope.report.render.terminal.console import bar_line, console_for, print_lines, title_lines
from stepscope.report.render.terminal.findings import finding_lines, rest_lines, try_lines
from stepscope.report.story.phrases import (
    IDLE_CAUSES,
    PHASE_NAMES,
    RUN_PART_NAMES,
    costliest_place,
    counted_steps,
    fix_outcome,
    outcome_sentences,
    run_remarks,
)
from stepscope.report.text import (
    format_bytes,
    format_duration,
    format_number,
    keep_end,
    safe,
    short_location,
)

Document = dict[str, Any]

_COLOURS = {
    "data_wait": "red",
    "h2d": "yellow",
    "forward": "green",
    "backward": "cyan",
    "optimizer": "blue",
    "other": "white",
}
_NOTICEABLE = 0.05
_WIDEST = 80
_TO_LOOK_AT = "    all of it, with a timeline"


def print_run(document: Document, stream: IO[str], everything: bool = False) -> None:
    """The screen `run` ends with and `show` prints; `everything` for `show --all`."""
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    lines: list[Text] = _title(document, width)
    lines += _ending(document)
    lines += _fixes(document)
    short = bool(document.get("findings")) and not everything
    if document["steps"]["count"]:
        lines += [Text(), _headline(document), Text()]
        lines += _bars(document, width)
        more = f"stepscope show {_reference(document['run'])} --all"
        lines += finding_lines(document, width, everything, more)
        if not short:
            lines += _nothing_found(document)
            lines += _sinks(document)
            lines += _waits(document)
            lines += _idle(document)
        lines += _remarks(document)
    lines += rest_lines(document, width) if everything else []
    lines += _account_line(document) if short else _account(document)
    lines += _host_code(document)
    lines += _memory_lines(document)
    lines += [Text(f"note: {safe(problem)}", "yellow") for problem in document["problems"]]
    lines += _next(document, width, short)
    print_lines(console, [Text(), *lines], width)


def _title(document: Document, width: int) -> list[Text]:
    run = document["run"]
    gpu = (document["gpu"] or {}).get("name")
    parts = [
        keep_end(safe(run["program"]), width - 14),
        counted_steps(document),
        safe(gpu) if gpu else (run["device"] or "cpu").upper(),
        f"torch {safe(str(run['torch'])).partition('+')[0]}",
        f"run {safe(run['id'])}",
    ]
    return title_lines(parts, width)


def _ending(document: Document) -> list[Text]:
    style = "yellow" if document["run"]["exit_code"] is None else "bold red"
    return [Text(f"  {safe(text)}", style) for text in outcome_sentences(document)]


def _fixes(document: Document) -> list[Text]:
    """What became of each fix that was asked for."""
    styles = {"applied": "green", "broke": "bold red"}
    lines = [
        Text(f"  {safe(fix_outcome(fix))}", styles.get(fix["state"], "yellow"))
        for fix in document["fixes"]
    ]
    return [Text(), *lines] if lines else []


def _headline(document: Document) -> Text:
    steps, gpu = document["steps"], document["gpu"]
    unit = {"inference": "call", "batches": "batch"}.get(steps["what"], "step")
    parts = [f"{format_number(steps['mean_ms'])} ms per {unit}"]
    if steps["samples_per_s"]:
        parts.append(f"{steps['samples_per_s']:,.0f} samples/s")
    if gpu is not None:
        if gpu["busy_fraction"] is not None:
            parts.append(f"GPU busy {gpu['busy_fraction']:.0%}")
        peak = f"peak {format_bytes(gpu['peak_allocated_bytes'])}"
        total = gpu["total_bytes"]
        parts.append(f"{peak} of {format_bytes(total)}" if total else peak)
    elif document["memory"]["peak_bytes"]:
        parts.append(f"peak {format_bytes(document['memory']['peak_bytes'])}")
    return Text("  " + "   ".join(parts), "bold")


def _bars(document: Document, width: int) -> list[Text]:
    total = document["steps"]["mean_ms"]
    return [
        bar_line(f"{PHASE_NAMES[phase]:<9}", ms, total, _COLOURS[phase], width)
        for phase, ms in document["phases_ms"].items()
        if phase != "h2d" or document["gpu"] or ms
    ]


def _nothing_found(document: Document) -> list[Text]:
    """Said where the run was diagnosed and nothing slows a step noticeably."""
    if document.get("findings") != []:
        return []
    return [Text(), Text("No bottleneck found: no change is known to save 2% of a step", "green")]


def _sinks(document: Document) -> list[Text]:
    if not document["sinks"]:
        return []
    lines = [Text(), Text("Where a step's time goes", "bold"), Text()]
    for number, sink in enumerate(document["sinks"], start=1):
        where = short_location(sink["file"], sink["line"])
        lines.append(
            Text.assemble(
                f" {number}  {sink['title']:<29}",
                (f"{format_number(sink['ms']):>7} ms  {sink['share']:>4.0%}", "bold"),
                f"  {where}",
            )
        )
        if sink["detail"]:
            lines.append(Text(f"    {safe(sink['detail'])}", "dim"))
    return lines


def _waits(document: Document) -> list[Text]:
    steps = document["steps"]["count"]
    worst = [s for s in document["syncs"] if s["lost_ms"] > 0.02 * steps][:3]
    if not worst:
        return []
    lines = [Text(), Text("The host waits for the device at", "bold")]
    for sync in worst:
        per_step = sync["lost_ms"] / steps
        where = short_location(sync["file"], sync["line"])
        lines.append(
            Text(
                f"    {safe(sync['what']):<16} {where:<28}"
                f" {sync['count']:>8,}×  {format_number(per_step):>6} ms a step"
            )
        )
    return lines


def _idle(document: Document) -> list[Text]:
    """Why the GPU was idle in the window: shares only, as recording stretches the times."""
    timeline = document["timeline"]
    if timeline is None or not timeline["breakdown_ns"]["idle"]:
        return []
    total = timeline["breakdown_ns"]["idle"]
    if total < _NOTICEABLE * timeline["breakdown_ns"]["wall"]:
        return []
    places = (document["timeline_stacks"] or {}).get("idle_places", {})
    causes = sorted(
        ((ns / total, cause) for cause, ns in timeline["idle_ns"].items()), reverse=True
    )
    lines = [Text(), Text("Why the GPU is idle, in the recorded steps", "bold")]
    for share, cause in causes[:3]:
        if share >= _NOTICEABLE:
            at = costliest_place(places.get(cause, []))
            lines.append(Text(f"    {share:>4.0%}  {IDLE_CAUSES[cause]:<30} {at}".rstrip()))
    return lines


def _remarks(document: Document) -> list[Text]:
    lines = [Text(f"    {remark}", "yellow") for remark in run_remarks(document)]
    return [Text(), *lines] if lines else []


def _account(document: Document) -> list[Text]:
    account, places = document["account_s"], document["account_places"]
    total = sum(account.values())
    if not total:
        return []
    lines = [Text(), Text(f"The whole run, {format_duration(total)}", "bold")]
    for name, value in sorted(account.items(), key=lambda item: -item[1]):
        if value < 0.02 * total:
            continue
        where = places.get(name, {})
        at = short_location(where.get("file"), where.get("line"))
        if name == "imports" and where:
            at = f"{keep_end(safe(where['module']), 30)} {format_duration(where['seconds'])}"
        label = RUN_PART_NAMES.get(name, name)
        row = f"    {label:<13}{format_duration(value):>12}  {value / total:>4.0%}  {at}"
        lines.append(Text(row.rstrip()))
    return lines


def _account_line(document: Document) -> list[Text]:
    """The whole run in a line, where findings need the room."""
    account = document["account_s"]
    total = sum(account.values())
    if not total:
        return []
    parts = [
        f"{RUN_PART_NAMES.get(name, name)} {value / total:.0%}"
        for name, value in sorted(account.items(), key=lambda item: -item[1])
        if value >= _NOTICEABLE * total
    ]
    words = f"The whole run, {format_duration(total)}: "
    return [Text(), Text.assemble((words, "bold"), ", ".join(parts))]


def _host_code(document: Document) -> list[Text]:
    code = document["host_code"]
    if not code or not code["lines"]:
        return []
    lines = [Text(), Text(f"Python, {format_duration(code['sampled_s'])} sampled", "bold")]
    for line in code["lines"][:5]:
        where = f"{short_location(line['file'], line['line'])} {safe(line['function'])}"
        own, total = format_duration(line["own_s"]), format_duration(line["cumulative_s"])
        lines.append(Text(f"    own {own:>7}  total {total:>7}  {where}"))
    return lines


def _memory_lines(document: Document) -> list[Text]:
    memory = document["memory"]["lines"]
    if not memory:
        return []
    lines = [Text(), Text(f"Memory at its peak, {format_bytes(memory['peak_bytes'])}", "bold")]
    for word, key in (("", "at_peak"), ("grew by ", "growth")):
        for line in memory[key][:4]:
            where = short_location(line["file"], line["line"])
            lines.append(
                Text(
                    f"    {word}{format_bytes(line['bytes']):>10}  {where} {safe(line['function'])}"
                )
            )
    return lines


def _next(document: Document, width: int, short: bool) -> list[Text]:
    run = document["run"]
    if not document["steps"]["count"]:
        return [Text(), Text("Next:  stepscope run --help")]
    lines = try_lines(document, width)
    lines.append(_told(f"stepscope report {_reference(run)} --open", _TO_LOOK_AT, width))
    if document["windows"] and not short:
        lines.append(Text("open in Perfetto or TensorBoard:"))
        lines.append(Text(f"{_path(run['folder'])}/window.pt.trace.json.gz"))
    elif run.get("window") and not document["windows"] and not run["under_way"]:
        hint = "no kernels recorded: it ended too early; --window-at 2 would"
        lines.append(Text(hint, "dim"))
    first, *rest = lines
    indented = [Text.assemble("       ", line) for line in rest]
    return [Text(), Text.assemble("Next:  ", first), *indented]


def _told(command: str, what: str, width: int) -> Text:
    """A command, and what it is for where there is room."""
    return Text(command + (what if len(command) + len(what) <= width - 7 else ""))


def _reference(run: Document) -> str:
    """What names the run to `show`: its id where that finds it, else its folder."""
    path = _path(run["folder"])
    return safe(run["id"]) if path.startswith(".stepscope/") else path


def _path(folder: str) -> str:
    """A folder relative to here when it lies below."""
    relative = os.path.relpath(folder)
    return safe(os.path.abspath(folder) if relative.startswith("..") else relative)
