"""How far a grid is: a bar with an estimate on a terminal, plain lines elsewhere; on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.bench.point import Point
from stepscope.bench.run import Progress
from stepscope.report.text import milliseconds, safe, seconds


def say(text: str) -> None:
    """One line."""
    print(f"stepscope: {safe(text)}", file=sys.stderr, flush=True)


Namer = Callable[[Point], str]


@contextmanager
def progress(results: Any, name: Namer | None = None) -> Iterator[Callable[[Progress], None]]:
    """What hears of each measurement as it starts and ends; `name` says which point that is."""
    name = name or in_grid
    if results.records:
        say(f"going on in {results.folder}: {len(results.records)} measured before")
    if not sys.stderr.isatty():
        yield lambda now: _plain(now, name)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}", markup=False),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, refresh_per_second=2) as bar:
        task = bar.add_task("starting", total=None, left="")

        def hear(now: Progress) -> None:
            left = "" if now.left_s is None else f"{seconds(now.left_s)} left"
            bar.update(task, completed=now.done, total=now.done + now.left)
            if now.record is None:
                bar.update(task, description=f"{name(now.point)} ", left=left)

        yield hear


def in_grid(point: Point) -> str:
    """`resnet18 train batch 32 cuda amp=bf16`."""
    from stepscope.bench.grid import label

    words = f"{point.model} {point.mode} batch {point.batch} {point.device} {label(point.fixes)}"
    return safe(words if len(words) <= 60 else words[:59] + "…")


def of_loader(point: Point) -> str:
    """`batch 32, workers 4, pinned, prefetch 2`."""
    how = dict(point.settings)
    words = f"batch {point.batch}, workers {how['workers']}"
    words += ", pinned" if how["pin"] == "on" else ""
    return words + (f", prefetch {how['prefetch']}" if "prefetch" in how else "")


def _plain(now: Progress, name: Namer) -> None:
    if now.record is not None:
        line = f"{now.done}/{now.done + now.left}  {name(now.point)}: {_came_of(now.record)}"
        print(line, file=sys.stderr, flush=True)


def _came_of(record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        why = f": {safe(record['why'])}" if record["why"] else ""
        return f"{record['status'].replace('_', ' ')}{why}"
    measured = record["measured"]
    rate = measured["samples"] / measured["elapsed_s"] if measured["elapsed_s"] else 0.0
    return f"{milliseconds(rate)} samples/s ({seconds(record['seconds'])})"
