"""How far a loader grid is: a bar with an estimate on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.bench.run import Progress
from stepscope.cli.bench_progress import say
from stepscope.report.text import milliseconds, safe, seconds


@contextmanager
def progress(results: Any) -> Iterator[Callable[[Progress], None]]:
    """What hears of each setting as it starts and ends; it speaks on stderr."""
    if results.records:
        say(f"going on in {results.folder}: {len(results.records)} measured before")
    if not sys.stderr.isatty():
        yield _plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def hear(now: Progress) -> None:
            bar.update(task, completed=now.done, total=now.done + now.left)
            if now.record is None:
                left = "" if now.left_s is None else f", {seconds(now.left_s)} left"
                bar.update(task, description=f"{_name(now)}{left} ")

        yield hear


def _plain(now: Progress) -> None:
    if now.record is not None:
        line = f"{now.done}/{now.done + now.left}  {_name(now)}: {_came_of(now.record)}"
        print(line, file=sys.stderr, flush=True)


def _name(now: Progress) -> str:
    """`batch 32, workers 4, pinned, prefetch 2`."""
    how = dict(now.point.settings)
    words = f"batch {now.point.batch}, workers {how['workers']}"
    words += ", pinned" if how["pin"] == "on" else ""
    return words + (f", prefetch {how['prefetch']}" if "prefetch" in how else "")


def _came_of(record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status'].replace('_', ' ')}: {safe(record['why'] or '')}".rstrip(": ")
    measured = record["measured"]
    return f"{milliseconds(measured['samples'] / measured['elapsed_s'])} samples/s"
