"""A grid under way: its progress display, and how it is interrupted and resumed."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from stepscope.bench.grid import Point
from stepscope.bench.run import GridProgress
from stepscope.report.text import format_duration, format_number, safe


def announce(text: str) -> None:
    """One line."""
    print(f"stepscope: {safe(text)}", file=sys.stderr, flush=True)


Namer = Callable[[Point], str]


@contextmanager
def progress(results: Any, name: Namer | None = None) -> Iterator[Callable[[GridProgress], None]]:
    """What hears of each measurement as it starts and ends; `name` says which point that is."""
    name = name or grid_point_name
    if results.records:
        announce(f"going on in {results.folder}: {len(results.records)} measured before")
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

        def hear(now: GridProgress) -> None:
            left = "" if now.left_s is None else f"{format_duration(now.left_s)} left"
            bar.update(task, completed=now.done, total=now.done + now.left)
            if now.record is None:
                bar.update(task, description=f"{name(now.point)} ", left=left)

        yield hear


def grid_point_name(point: Point) -> str:
    """`resnet18 train batch 32 cuda amp=bf16`."""
    from stepscope.bench.grid import variant_label

    variant = variant_label(point.fixes)
    words = f"{point.model} {point.mode} batch {point.batch} {point.device} {variant}"
    return safe(words if len(words) <= 60 else words[:59] + "…")


def loader_point_name(point: Point) -> str:
    """`batch 32, workers 4, pinned, prefetch 2`."""
    how = dict(point.settings)
    words = f"batch {point.batch}, workers {how['workers']}"
    words += ", pinned" if how["pin"] == "on" else ""
    return words + (f", prefetch {how['prefetch']}" if "prefetch" in how else "")


def _plain(now: GridProgress, name: Namer) -> None:
    if now.record is not None:
        line = f"{now.done}/{now.done + now.left}  {name(now.point)}: {_outcome(now.record)}"
        print(line, file=sys.stderr, flush=True)


def _outcome(record: dict[str, Any]) -> str:
    if record["status"] != "ok":
        why = f": {safe(record['why'])}" if record["why"] else ""
        return f"{record['status'].replace('_', ' ')}{why}"
    measured = record["measured"]
    rate = measured["samples"] / measured["elapsed_s"] if measured["elapsed_s"] else 0.0
    return f"{format_number(rate)} samples/s ({format_duration(record['seconds'])})"


_STOPPED = 130
_HEARD = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible(results: Any, arguments: Sequence[str]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end the grid alike: exit code 130 after one line.

    What was ignored before, as under nohup, stays ignored.
    """
    heard = [number for number in _HEARD if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, _stop) for number in heard}
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{_resume_message(results, arguments)}", file=sys.stderr)
        sys.exit(_STOPPED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _resume_message(results: Any, arguments: Sequence[str]) -> str:
    from stepscope.report.text import plural

    folder, here = results.folder, Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    words = shlex.join(["stepscope", "bench", *_resume_arguments(arguments, str(shown))])
    count = len(results.records)
    done = plural(count, "measurement") if count else "what was finished is"
    return f"stepscope: stopped; {done} kept, go on with: {safe(words)}"


def _resume_arguments(arguments: Sequence[str], folder: str) -> list[str]:
    """The same command line, into the same folder and without replacing it."""
    kept: list[str] = []
    for place, word in enumerate(arguments):
        value_of_out = place and arguments[place - 1] == "--out"
        if word not in ("--force", "--out") and not word.startswith("--out=") and not value_of_out:
            kept.append(word)
    return [*kept, "--out", folder]
