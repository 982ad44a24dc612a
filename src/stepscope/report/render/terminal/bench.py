"""A benchmark or a study on a terminal: the answer, the tables, the next command."""

from importlib import import_module
from typing import IO, Any

from rich.text import Text

from stepscope.report.render.terminal.bench_answer import (
    COST_COLUMNS,
    SPEED_COLUMNS,
    SPEEDUP,
    PointColumn,
    answer_lines,
    columns_with_values,
    noise_floor_sentence,
    point_prefix,
    training_columns,
)
from stepscope.report.render.terminal.console import console_for, print_lines, title_lines
from stepscope.report.story.bench.groups import Group, best_point, group_points
from stepscope.report.text import plural, safe

Document = dict[str, Any]

_LABEL = 26
"""Longer names stand on a line of their own, above their row."""
FAILED = {"out_of_memory": "out of memory", "failed": "failed", "timed_out": "timed out"}


def _table(group: Group, columns: list[PointColumn], width: int, told: bool = True) -> list[Text]:
    """Heading and a row for each point; nothing where no column has a value.

    Columns that do not fit beside the others follow in a table below. `told`: also the rows of
    what failed, and what became of fixes that did not apply.
    """
    measured = [point for point in group.points if point["status"] == "ok"]
    shown = columns_with_values(columns, measured)
    if not shown and not (told and len(measured) < len(group.points)):
        return []
    labels = {point["key"]: label(group, point) for point in group.points}
    left = min(_LABEL, max(len(_heading(group)), *map(len, labels.values())))
    lines: list[Text] = []
    for some in _packed(shown, measured, width - 2 - left):
        cells = {point["key"]: _right(point, some, measured) for point in measured}
        lines += [Text()] if lines else []
        lines.append(Text(f"  {_heading(group):<{left}}{_right(None, some, measured)}", "dim"))
        for point in group.points:
            name = labels[point["key"]]
            if point["key"] in cells:
                lines += _row(name, cells[point["key"]], left)
                lines += _not_applied(point) if told else []
            elif told:
                lines.append(_failure(name, point, left))
        told = False
    return lines


def _packed(
    columns: list[PointColumn], points: list[Document], room: int
) -> list[list[PointColumn]]:
    """The columns in order, as many together as there is room for."""
    packed: list[list[PointColumn]] = [[]]
    left = room
    for column in columns:
        needs = 2 + _wide(column, points)
        if needs > left and packed[-1]:
            packed.append([])
            left = room
        packed[-1].append(column)
        left -= needs
    return packed


def _wide(column: PointColumn, points: list[Document]) -> int:
    return max(len(column.heading), *(len(column.cell(point) or "–") for point in points))


def _right(point: Document | None, columns: list[PointColumn], points: list[Document]) -> str:
    """A point's cells, each as wide as its column; the headings for None."""
    return "".join(
        f"  {column.heading if point is None else column.cell(point) or '–':>{wide}}"
        for column, wide in ((column, _wide(column, points)) for column in columns)
    )


def label(group: Group, point: Document) -> str:
    """Batch, and variant where there are several; `!` where the series was unstable."""
    words = f"{point['batch']:>5,}"
    if _names_variants(group):
        words += f"  {safe(point['variant'])}"
    return words + (" !" if point.get("unstable") else "")


def _names_variants(group: Group) -> bool:
    return group.variants != ["none"]


def _heading(group: Group) -> str:
    return "batch" + ("  variant" if _names_variants(group) else "")


def _row(name: str, cells: str, left: int) -> list[Text]:
    if len(name) <= left:
        return [Text(f"  {name:<{left}}{cells}")]
    return [Text(f"  {name}"), Text(f"  {'':<{left}}{cells}")]


def _failure(name: str, point: Document, left: int) -> Text:
    why = f": {safe(point['why'])}" if point.get("why") else ""
    return Text(f"  {name:<{left}}  {FAILED.get(point['status'], 'failed')}{why}", "red")


def _not_applied(point: Document) -> list[Text]:
    return [
        Text(f"         without {safe(fix['name'])}: {safe(str(fix['why']))}", "yellow")
        for fix in point.get("not_applied") or []
    ]


_WIDEST = 80


def _print_study(document: Document, stream: IO[str]) -> None:
    """The screen a study ends with: the answer first, the next command last."""
    study = document["study"]
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    torch = ((document.get("machine") or {}).get("torch") or {}).get("version")
    parts = [
        f"study {safe(study['name'])}",
        safe(study["model"]),
        f"batch {study['batch']:,}",
        *_study_screen(study).about(study),
        f"torch {safe(str(torch)).partition('+')[0]}" if torch else None,
    ]
    lines = [
        *title_lines([part for part in parts if part], width),
        Text(),
        *_study_screen(study).screen(study),
    ]
    notes = [*study["notes"], *(document.get("notes") or [])]
    lines += [Text(), *(Text(f"note: {safe(str(note))}", "yellow") for note in notes)] * bool(notes)
    lines += [Text(), Text(f"Next:  {_study_screen(study).following(study)}")]
    print_lines(console, [Text(), *lines], width)


def markdown_study(document: Document) -> str:
    """The study as a section; needs nothing but `study` of the document."""
    study = document["study"]
    return "\n".join(_study_screen(study).page(study)).rstrip() + "\n"


def _study_screen(study: Document) -> Any:
    """The module that draws this kind: `about`, `screen`, `page` and `following` of a study."""
    name = {"cpu-gpu": "bench_cpu_gpu", "memory": "bench_memory"}[study["name"]]
    return import_module(f"stepscope.report.render.terminal.{name}")


_MOST_UNSTABLE = 4
_IMPOSSIBLE = 1.05  # of a ceiling


def print_bench(document: Document, stream: IO[str]) -> None:
    """The screen `stepscope bench` ends with, also for its studies."""
    if document.get("study"):
        _print_study(document, stream)
        return
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    every = group_points(document["points"])
    lines = [*bench_title(document, width), Text(), *answer_lines(document)]
    for group in every:
        lines += _tables(group, width, bool(document["request"].get("ablate")))
    lines += _remarks(document, every)
    lines += next_lines(document, every)
    print_lines(console, [Text(), *lines], width)


def bench_title(document: Document, width: int) -> list[Text]:
    """What was measured, on what, how often."""
    points, machine = document["points"], document["machine"]
    models = list(dict.fromkeys(safe(point["model"]) for point in points))
    named = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
    torch = (machine.get("torch") or {}).get("version")
    rounds = max((point.get("rounds") or 0 for point in points), default=0)
    parts = [
        f"bench · {named}",
        ", ".join(device_names(document)),
        f"torch {safe(str(torch)).partition('+')[0]}" if torch else None,
        plural(rounds, "process").replace("processs", "processes") + " each" if rounds else None,
    ]
    return title_lines([part for part in parts if part], width)


def device_names(document: Document) -> list[str]:
    """The devices measured on, by the names their makers gave them."""
    machine = document["machine"]
    gpus = [gpu.get("name") for gpu in machine.get("gpus") or []]
    known = {
        "cpu": (machine.get("cpu") or {}).get("model") or "CPU",
        "cuda": gpus[0] if gpus and gpus[0] else "CUDA",
    }
    devices = dict.fromkeys(point["device"] for point in document["points"])
    return [safe(str(known.get(device, device))) for device in devices]


def _tables(group: Group, width: int, ablated: bool) -> list[Text]:
    """Speed, then what training came to, then what it cost."""
    columns = SPEED_COLUMNS[group.mode]
    if len(group.variants) > 1 and (len(group.batches) > 1 or ablated):
        columns = [*columns[:3], SPEEDUP, *columns[3:]]
    lines = [Text(), Text(f"{safe(group.model)} · {group.mode} · {group.device}", "bold")]
    lines += _table(group, columns, width)
    for more in (training_columns(group.points), COST_COLUMNS):
        rows = _table(group, more, width, told=False)
        lines += [Text(), *rows] if rows else []
    return lines


def _remarks(document: Document, every: list[Group]) -> list[Text]:
    remarks = []
    for group in every:
        for point in group.points:
            if point.get("unstable"):
                head = point_prefix(group, point["batch"], len(every) > 1)
                why = safe(str(point.get("unstable_why") or "its times did not settle"))
                remarks.append(f"! unstable: {head}{safe(point['variant'])}: {why}")
    if len(remarks) > _MOST_UNSTABLE:
        rest = len(remarks) - _MOST_UNSTABLE + 1
        remarks[_MOST_UNSTABLE - 1 :] = [f"! unstable: {rest} more, marked in the tables"]
    remarks += _point_notes(document)
    floor = document.get("noise_floor")
    if floor is not None:
        remarks.append(noise_floor_sentence(floor))
    if words := impossible_mfu(document["points"]):
        remarks.append(f"note: {words}")
    remarks += [f"note: {safe(str(note))}" for note in document.get("notes") or []]
    return [Text(), *(Text(remark, "yellow") for remark in remarks)] if remarks else []


def impossible_mfu(points: list[Document]) -> str | None:
    """What an MFU beyond the ceiling means; None where there is none."""
    if not any((point.get("mfu") or 0.0) > _IMPOSSIBLE for point in points):
        return None
    return (
        "an MFU above 100% means that the ceilings were measured on a busy"
        " machine: stepscope doctor --refresh"
    )


def _point_notes(document: Document) -> list[str]:
    """Each once, with how many points it is true of."""
    points = document["points"]
    notes = [str(note) for point in points for note in point.get("notes") or []]
    return [
        f"note: {safe(note)}"
        + (f" ({notes.count(note)} of {len(points)} points)" if len(points) > 1 else "")
        for note in dict.fromkeys(notes)
    ]


def next_lines(document: Document, every: list[Group]) -> list[Text]:
    """What to type next."""
    found = best_point([point for group in every for point in group.points])
    model = safe(every[0].model) if every else "resnet18"
    if found is not None and found["fixes"]:
        fixes = " ".join(f"--fix {safe(fix)}" for fix in found["fixes"])
        command, why = f"stepscope run {fixes} train.py", "the same for your program"
    elif every and all(len(group.batches) == 1 for group in every):
        command = f"stepscope bench {model} --batch 1,8,64,512"
        why = "where does throughput stop growing?"
    else:
        command, why = f"stepscope bench {model} --ablate amp=bf16,channels_last", "what helps it?"
    return [Text(), Text(f"Next:  {command}"), Text(f"       {why}", "dim")]
