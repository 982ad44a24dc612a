"""A benchmark under way and at its end: progress, how it is interrupted and resumed, its output."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from stepscope.bench.grid import Point
from stepscope.bench.record import ProcessRecord
from stepscope.bench.results import BenchResult, PointStatus
from stepscope.bench.run import BenchFolder, GridProgress
from stepscope.record.errors import UsageError
from stepscope.record.units import format_duration, format_number, plural
from stepscope.report.text import safe


def announce(text: str) -> None:
    """One line."""
    print(f"stepscope: {safe(text)}", file=sys.stderr, flush=True)


Namer = Callable[[Point], str]


@contextmanager
def grid_progress(
    results: BenchFolder, name: Namer | None = None
) -> Iterator[Callable[[GridProgress], None]]:
    """What hears of each measurement as it starts and ends; `name` says which point that is."""
    from stepscope.cli.progress import progress, time_left

    name = name or grid_point_name
    if results.records:
        announce(f"resuming in {results.folder}: {len(results.records)} measured before")
    with progress() as shown:

        def hear(now: GridProgress) -> None:
            done, total = now.done, now.done + now.left
            if now.record is None:
                shown.update(name(now.point), done, total, time_left(now.left_s))
            else:
                shown.line(f"{done}/{total}  {name(now.point)}: {_outcome(now.record)}")

        yield hear


def grid_point_name(point: Point) -> str:
    """`resnet18 train batch 32 cuda amp=bf16`."""
    from stepscope.bench.grid import variant_label

    variant = variant_label(point.fixes)
    words = f"{point.model} {point.mode} batch {point.batch} {point.device} {variant}"
    return safe(words if len(words) <= 60 else words[:59] + "…")


def loader_point_name(point: Point) -> str:
    """`batch 32, workers 4, pinned, prefetch 2`."""
    how = point.settings
    words = f"batch {point.batch}, workers {how['workers']}"
    words += ", pinned" if how["pin"] == "on" else ""
    return words + (f", prefetch {how['prefetch']}" if "prefetch" in how else "")


def _outcome(record: ProcessRecord) -> str:
    if record.status is not PointStatus.OK or record.measured is None:
        return f"{record.status.label}: {record.why}" if record.why else record.status.label
    measured = record.measured
    rate = measured.samples / measured.elapsed_s if measured.elapsed_s else 0.0
    return f"{format_number(rate)} samples/s ({format_duration(record.seconds)})"


_STOPPED = 130
_HEARD = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible(results: BenchFolder, arguments: Sequence[str]) -> Iterator[None]:
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


def _resume_message(results: BenchFolder, arguments: Sequence[str]) -> str:
    folder, here = results.folder, Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    words = shlex.join(["stepscope", "bench", *_resume_arguments(arguments, str(shown))])
    count = len(results.records)
    return (
        f"stepscope: interrupted, {plural(count, 'measurement')} kept. Resume with: {safe(words)}"
    )


def _resume_arguments(arguments: Sequence[str], folder: str) -> list[str]:
    """The same command line, into the same folder and without replacing it."""
    kept: list[str] = []
    for place, word in enumerate(arguments):
        value_of_out = place and arguments[place - 1] == "--out"
        if word not in ("--force", "--out") and not word.startswith("--out=") and not value_of_out:
            kept.append(word)
    return [*kept, "--out", folder]


def check_writable(*files: Path | None) -> None:
    """Raise UsageError now rather than after an hour of measuring."""
    for path in files:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"cannot write {path}: name a file in a folder that exists")


def hand_out(
    bench: BenchResult, as_json: bool, csv_file: Path | None, markdown: Path | None
) -> None:
    """Files first, then JSON or the screen."""
    from stepscope.report.story.bench.story import bench_story

    if csv_file is not None:
        from stepscope.report.render.bench_csv import bench_csv

        csv_file.write_text(bench_csv(bench), encoding="utf-8")
    if markdown is not None:
        from stepscope.report.render.markdown import markdown as markdown_of

        markdown.write_text(markdown_of(bench_story(bench)), encoding="utf-8")
    if as_json:
        print(bench.json_text())
    else:
        from stepscope.report.render.terminal.story import print_story

        print_story(bench_story(bench), sys.stdout)
