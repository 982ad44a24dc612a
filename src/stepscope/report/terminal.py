"""A run on a terminal: the answer first, one screen, the next command last."""

import os
from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import bar, title
from stepscope.report.findings import finding_lines, rest_lines, try_lines
from stepscope.report.idle import IDLE_CAUSES, idle_place
from stepscope.report.lines import console_for, show_lines
from stepscope.report.names import ACCOUNT, PHASES
from stepscope.report.run_words import counted, ending, fix_state, remarks
from stepscope.report.text import milliseconds, place, safe, seconds, shortened, size

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


def print_summary(document: Document, stream: IO[str], everything: bool = False) -> None:
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
    show_lines(console, [Text(), *lines], width)


def _title(document: Document, width: int) -> list[Text]:
    run = document["run"]
    gpu = (document["gpu"] or {}).get("name")
    parts = [
        shortened(safe(run["program"]), width - 14),
        counted(document),
        safe(gpu) if gpu else (run["device"] or "cpu").upper(),
        f"torch {safe(str(run['torch'])).partition('+')[0]}",
        f"run {safe(run['id'])}",
    ]
    return title(parts, width)


def _ending(document: Document) -> list[Text]:
    style = "yellow" if document["run"]["exit_code"] is None else "bold red"
    return [Text(f"  {safe(text)}", style) for text in ending(document)]


def _fixes(document: Document) -> list[Text]:
    """What became of each fix that was asked for."""
    styles = {"applied": "green", "broke": "bold red"}
    lines = [
        Text(f"  {safe(fix_state(fix))}", styles.get(fix["state"], "yellow"))
        for fix in document["fixes"]
    ]
    return [Text(), *lines] if lines else []


def _headline(document: Document) -> Text:
    steps, gpu = document["steps"], document["gpu"]
    unit = {"inference": "call", "batches": "batch"}.get(steps["what"], "step")
    parts = [f"{milliseconds(steps['mean_ms'])} ms per {unit}"]
    if steps["samples_per_s"]:
        parts.append(f"{steps['samples_per_s']:,.0f} samples/s")
    if gpu is not None:
        if gpu["busy_fraction"] is not None:
            parts.append(f"GPU busy {gpu['busy_fraction']:.0%}")
        peak = f"peak {size(gpu['peak_allocated_bytes'])}"
        total = gpu["total_bytes"]
        parts.append(f"{peak} of {size(total)}" if total else peak)
    elif document["memory"]["peak_bytes"]:
        parts.append(f"peak {size(document['memory']['peak_bytes'])}")
    return Text("  " + "   ".join(parts), "bold")


def _bars(document: Document, width: int) -> list[Text]:
    total = document["steps"]["mean_ms"]
    return [
        bar(f"{PHASES[phase]:<9}", ms, total, _COLOURS[phase], width)
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
        where = place(sink["file"], sink["line"])
        lines.append(
            Text.assemble(
                f" {number}  {sink['title']:<29}",
                (f"{milliseconds(sink['ms']):>7} ms  {sink['share']:>4.0%}", "bold"),
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
        where = place(sync["file"], sync["line"])
        lines.append(
            Text(
                f"    {safe(sync['what']):<16} {where:<28}"
                f" {sync['count']:>8,}×  {milliseconds(per_step):>6} ms a step"
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
            at = idle_place(places.get(cause, []))
            lines.append(Text(f"    {share:>4.0%}  {IDLE_CAUSES[cause]:<30} {at}".rstrip()))
    return lines


def _remarks(document: Document) -> list[Text]:
    lines = [Text(f"    {remark}", "yellow") for remark in remarks(document)]
    return [Text(), *lines] if lines else []


def _account(document: Document) -> list[Text]:
    account, places = document["account_s"], document["account_places"]
    total = sum(account.values())
    if not total:
        return []
    lines = [Text(), Text(f"The whole run, {seconds(total)}", "bold")]
    for name, value in sorted(account.items(), key=lambda item: -item[1]):
        if value < 0.02 * total:
            continue
        where = places.get(name, {})
        at = place(where.get("file"), where.get("line"))
        if name == "imports" and where:
            at = f"{shortened(safe(where['module']), 30)} {seconds(where['seconds'])}"
        row = f"    {ACCOUNT.get(name, name):<13}{seconds(value):>12}  {value / total:>4.0%}  {at}"
        lines.append(Text(row.rstrip()))
    return lines


def _account_line(document: Document) -> list[Text]:
    """The whole run in a line, where findings need the room."""
    account = document["account_s"]
    total = sum(account.values())
    if not total:
        return []
    parts = [
        f"{ACCOUNT.get(name, name)} {value / total:.0%}"
        for name, value in sorted(account.items(), key=lambda item: -item[1])
        if value >= _NOTICEABLE * total
    ]
    words = f"The whole run, {seconds(total)}: "
    return [Text(), Text.assemble((words, "bold"), ", ".join(parts))]


def _host_code(document: Document) -> list[Text]:
    code = document["host_code"]
    if not code or not code["lines"]:
        return []
    lines = [Text(), Text(f"Python, {seconds(code['sampled_s'])} sampled", "bold")]
    for line in code["lines"][:5]:
        where = f"{place(line['file'], line['line'])} {safe(line['function'])}"
        own, total = seconds(line["own_s"]), seconds(line["cumulative_s"])
        lines.append(Text(f"    own {own:>7}  total {total:>7}  {where}"))
    return lines


def _memory_lines(document: Document) -> list[Text]:
    memory = document["memory"]["lines"]
    if not memory:
        return []
    lines = [Text(), Text(f"Memory at its peak, {size(memory['peak_bytes'])}", "bold")]
    for word, key in (("", "at_peak"), ("grew by ", "growth")):
        for line in memory[key][:4]:
            where = place(line["file"], line["line"])
            lines.append(
                Text(f"    {word}{size(line['bytes']):>10}  {where} {safe(line['function'])}")
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
