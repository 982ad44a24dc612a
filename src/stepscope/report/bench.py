"""A benchmark on a terminal: the answer first, then the tables, the next command last."""

from typing import IO, Any

from rich.text import Text

from stepscope.report.bars import title
from stepscope.report.bench_answer import answer_lines, where
from stepscope.report.bench_columns import COST, SPEED, SPEEDUP, floor_words, learning
from stepscope.report.bench_groups import Group, best, groups
from stepscope.report.bench_rows import table
from stepscope.report.lines import console_for, show_lines
from stepscope.report.text import plural, safe

Document = dict[str, Any]

_WIDEST = 80
_MOST_UNSTABLE = 4
_IMPOSSIBLE = 1.05  # of a ceiling


def print_bench(document: Document, stream: IO[str]) -> None:
    """The screen `stepscope bench` ends with, also for its studies."""
    if document.get("study"):
        from stepscope.report.bench_study import print_study

        print_study(document, stream)
        return
    console = console_for(stream)
    width = min(console.width if stream.isatty() else _WIDEST, _WIDEST)
    every = groups(document["points"])
    lines = [*bench_title(document, width), Text(), *answer_lines(document)]
    for group in every:
        lines += _tables(group, width, bool(document["request"].get("ablate")))
    lines += _remarks(document, every)
    lines += next_lines(document, every)
    show_lines(console, [Text(), *lines], width)


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
    return title([part for part in parts if part], width)


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
    columns = SPEED[group.mode]
    if len(group.variants) > 1 and (len(group.batches) > 1 or ablated):
        columns = [*columns[:3], SPEEDUP, *columns[3:]]
    lines = [Text(), Text(f"{safe(group.model)} · {group.mode} · {group.device}", "bold")]
    lines += table(group, columns, width)
    for more in (learning(group.points), COST):
        rows = table(group, more, width, told=False)
        lines += [Text(), *rows] if rows else []
    return lines


def _remarks(document: Document, every: list[Group]) -> list[Text]:
    remarks = []
    for group in every:
        for point in group.points:
            if point.get("unstable"):
                head = where(group, point["batch"], len(every) > 1)
                why = safe(str(point.get("unstable_why") or "its times did not settle"))
                remarks.append(f"! unstable: {head}{safe(point['variant'])}: {why}")
    if len(remarks) > _MOST_UNSTABLE:
        rest = len(remarks) - _MOST_UNSTABLE + 1
        remarks[_MOST_UNSTABLE - 1 :] = [f"! unstable: {rest} more, marked in the tables"]
    remarks += _point_notes(document)
    floor = document.get("noise_floor")
    if floor is not None:
        remarks.append(floor_words(floor))
    if words := impossible(document["points"]):
        remarks.append(f"note: {words}")
    remarks += [f"note: {safe(str(note))}" for note in document.get("notes") or []]
    return [Text(), *(Text(remark, "yellow") for remark in remarks)] if remarks else []


def impossible(points: list[Document]) -> str | None:
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
    found = best([point for group in every for point in group.points])
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
