"""What benchmarks share: output options, progress, interrupting and resuming."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from stepscope.record.errors import UsageError
from stepscope.record.units import format_duration, format_number, plural
from stepscope.report.text import keep_start, safe

if TYPE_CHECKING:
    from stepscope.bench.grid import BenchRequest, Point
    from stepscope.bench.record import ProcessRecord
    from stepscope.bench.results import BenchResult
    from stepscope.bench.run import BenchFolder, GridProgress

_ARGUMENTS = "stepscope.bench.arguments"
_FILE = click.Path(path_type=Path)
_OUTPUT: dict[str, dict[str, Any]] = {
    "--out": {"type": _FILE, "help": "Folder [.stepscope/bench-<id>]; resumes what is there."},
    "--force": {"is_flag": True, "help": "Replace the results in --out."},
    "--json": {"is_flag": True, "help": "Print one JSON document."},
    "--csv": {"type": _FILE, "help": "Write a row per point to this file."},
    "--markdown": {"type": _FILE, "help": "Write the tables to this file."},
}


class BenchCommand(click.Command):
    """Keeps its arguments, to print the command that repeats or resumes it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        name = [] if self.name == "bench" else [str(self.name)]
        ctx.meta[_ARGUMENTS] = [*name, *args]
        return super().parse_args(ctx, args)


def output_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Where results go; `--json` arrives as `as_json`, `--csv` as `csv_file`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            words = [name, *{"--json": ["as_json"], "--csv": ["csv_file"]}.get(name, [])]
            command = click.option(*words, **_OUTPUT[name])(command)
        return command

    return add


def command_line() -> str:
    """The command line for display, with secrets masked."""
    from stepscope.record.privacy import masked_arguments

    arguments = click.get_current_context().meta[_ARGUMENTS]
    return shlex.join(["stepscope", "bench", *masked_arguments(arguments)])


def announce(text: str) -> None:
    print(f"stepscope: {safe(text)}", file=sys.stderr, flush=True)


_STOPPED = 130
_HEARD = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def open_session(request: "BenchRequest", out: Path | None, force: bool) -> "Iterator[BenchFolder]":
    """Open the folder of a benchmark while it runs.

    Ctrl-C, SIGTERM and SIGHUP all end it with one line and exit code 130. Signals ignored before,
    as under nohup, stay ignored.
    """
    from stepscope.bench.run import open_bench_folder
    from stepscope.bench.summary import made_with

    made = made_with(request.devices)
    with open_bench_folder(out, request, made, force, Path.cwd()) as results:
        heard = [number for number in _HEARD if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, _stop) for number in heard}
        try:
            yield results
        except KeyboardInterrupt:
            print(f"\n{_resume_message(results)}", file=sys.stderr)
            sys.exit(_STOPPED)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _resume_message(results: "BenchFolder") -> str:
    """The command that resumes: the same one, into the same folder, without --force."""
    folder, here = results.folder, Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    from stepscope.record.privacy import masked_arguments

    arguments: list[str] = click.get_current_context().meta[_ARGUMENTS]
    same = [
        word
        for before, word in pairwise(["", *arguments])
        if word not in ("--force", "--out") and not word.startswith("--out=") and before != "--out"
    ]
    words = shlex.join(["stepscope", "bench", *masked_arguments(same), "--out", str(shown)])
    kept = plural(len(results.records), "measurement")
    return f"stepscope: interrupted, {kept} kept. Resume with: {safe(words)}"


def grid_point_name(point: "Point") -> str:
    """`resnet18 train batch 32 cuda amp=bf16`."""
    from stepscope.bench.grid import variant_label

    variant = variant_label(point.fixes)
    words = f"{point.model} {point.mode} batch {point.batch} {point.device} {variant}"
    return safe(keep_start(words, 60))


@contextmanager
def grid_progress(
    results: "BenchFolder", name: "Callable[[Point], str]" = grid_point_name
) -> "Iterator[Callable[[GridProgress], None]]":
    """Show each measurement as it starts and ends; `name` labels its point."""
    from stepscope.cli.progress import progress, time_left

    if results.records:
        announce(f"resuming in {results.folder}: {len(results.records)} measured before")
    with progress() as shown:

        def show(now: "GridProgress") -> None:
            done, total = now.done, now.done + now.left
            if now.record is None:
                shown.update(name(now.point), done, total, time_left(now.left_s))
            else:
                shown.line(f"{done}/{total}  {name(now.point)}: {_outcome(now.record)}")

        yield show


def _outcome(record: "ProcessRecord") -> str:
    measured = record.measured
    if record.status != "ok" or measured is None:
        return f"{record.status.label}: {record.why}" if record.why else record.status.label
    rate = measured.samples / measured.elapsed_s if measured.elapsed_s else 0.0
    return f"{format_number(rate)} samples/s ({format_duration(record.seconds)})"


def check_writable(*files: Path | None) -> None:
    """Raise UsageError now rather than after an hour of measuring."""
    for path in files:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            raise UsageError(f"cannot write {path}: name a file in a folder that exists")


def write_results(
    bench: "BenchResult", as_json: bool, csv_file: Path | None, markdown: Path | None
) -> None:
    """Files first, then JSON or the screen."""
    from stepscope.report.story.bench.story import bench_story

    if csv_file is not None:
        from stepscope.report.render.csv_tables import bench_csv

        csv_file.write_text(bench_csv(bench), encoding="utf-8")
    if markdown is not None:
        from stepscope.report.render.markdown import markdown as markdown_of

        markdown.write_text(markdown_of(bench_story(bench)), encoding="utf-8")
    if as_json:
        print(bench.json_text())
    else:
        from stepscope.report.render.terminal.story import print_story

        print_story(bench_story(bench), sys.stdout)
