"""`stepscope batch`: the best batch size of an unmodified program."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.progress import Progress, note_misplaced, progress
from stepscope.record.errors import UsageError
from stepscope.record.units import format_duration, format_number

if TYPE_CHECKING:
    from stepscope.batch.sizes import SizeMeasurement


_INTERRUPTED = 130
_SIZE = click.IntRange(1, 999_999)
_ABOVE_0 = click.FloatRange(0, min_open=True)


def _show(display: Progress, batch: int | None, got: "SizeMeasurement | None") -> None:
    """Show a size as its measurement starts and ends."""
    if got is not None:
        if got.ok:
            rate = 1e3 * len(got.sample_ms) / sum(got.sample_ms)
            told = f"{format_number(rate)} samples/s"
        else:
            why = f": {got.detail}" if got.detail and got.status != "out_of_memory" else ""
            told = f"{got.status.label}{why}"
        display.line(f"batch {got.batch:,}: {told} ({format_duration(got.seconds)})")
    elif batch is not None:
        display.update(f"batch {batch:,}")


class Share(click.ParamType[float]):
    """`10%` or `0.1`, below 1."""

    name = "share"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < 1:
            self.fail(f"{text}: use a share such as 10%", param, ctx)
        return share


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--max", "largest", type=click.IntRange(2, 999_999), help="Largest size to try.")
@click.option("--min", "smallest", type=_SIZE, help="Smallest size [its own].")
@click.option("--headroom", type=Share(), default="10%", help="Memory to keep free [10%].")
@click.option(
    "--within", type=Share(), default="5%", help="Allowed loss from the best throughput [5%]."
)
@click.option(
    "--fix", "fixes", multiple=True, metavar="NAME[=VALUE]", help="Apply a fix at every size."
)
@click.option("--steps", type=click.IntRange(16), help="Steps per trial [by the program's speed].")
@click.option(
    "--seconds", type=_ABOVE_0, default=2.0, help="Seconds of steady steps per trial [2]."
)
@click.option(
    "--budget", default="10m", metavar="TIME", help="Time for all trials: 90s, 10m [10m]."
)
@click.option("--allow-writes", is_flag=True, help="Let the program write outside its folder.")
@click.option("--unguarded", is_flag=True, help="Run even if nothing can protect your files.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder [.stepscope/batch-<id>].")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def batch(
    module: bool,
    largest: int | None,
    smallest: int | None,
    fixes: tuple[str, ...],
    budget: str,
    allow_writes: bool,
    unguarded: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> int:
    """Find the best batch size of PROGRAM with its ARGUMENTS.

    Doubles the size, each in a process of its own in a copy of the working directory, until
    throughput stops growing or memory runs out.
    """
    import msgspec

    from stepscope.batch.finder import BatchFinder
    from stepscope.batch.program import BatchRequest
    from stepscope.fixes.registry import parse_fixes
    from stepscope.launch.program import Program, check_program
    from stepscope.measure.isolation import choose_wall
    from stepscope.measure.trial.pool import parse_budget
    from stepscope.record.probe_options import Wall
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.batch import batch_story
    from stepscope.report.story.machine import UNGUARDED

    parse_fixes(fixes)
    for fix in fixes:
        if fix.partition("=")[0] == "batch":
            raise UsageError(f"--fix {fix}: batch searches for the size itself; use --min, --max")
    if smallest is not None and largest is not None and smallest > largest:
        raise UsageError(f"--min {smallest} is above --max {largest}")
    budget_s = parse_budget(budget)
    target = Program(program, arguments, module)
    check_program(target, Path.cwd())
    note_misplaced(target)
    request = BatchRequest(fixes, smallest, largest, budget_s=budget_s, **options)
    wall = choose_wall(allow_writes, unguarded)
    if wall is Wall.NONE and not allow_writes:
        print(f"stepscope: {UNGUARDED}", file=sys.stderr)
    session = BatchFinder(target, out, Path.cwd(), allow_writes, unguarded)
    try:
        with progress(quiet, "baseline") as display:
            result, interrupted = session.run(request, lambda size, got: _show(display, size, got))
    except KeyboardInterrupt:
        print("stepscope: interrupted before anything was measured", file=sys.stderr)
        return _INTERRUPTED
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
    else:
        print_story(batch_story(result), sys.stdout)
    if interrupted:
        return _INTERRUPTED
    return 0 if result.knee else 1
