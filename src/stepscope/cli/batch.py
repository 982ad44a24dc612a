"""`stepscope batch`: the best batch size of an unmodified program, with its progress display."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from stepscope.batch.program import BatchListener
from stepscope.batch.sizes import SizeMeasurement
from stepscope.record.errors import UsageError
from stepscope.report.text import format_duration, format_number, safe


@contextmanager
def _progress(quiet: bool) -> Iterator[BatchListener]:
    """What hears of each trial; on stderr."""
    if quiet:
        yield lambda batch, got: None
    elif not sys.stderr.isatty():
        yield _plain
    else:
        from rich.console import Console

        console = Console(stderr=True, highlight=False, markup=False, emoji=False)
        with console.status("the program as it is") as status:

            def hear(batch: int | None, got: SizeMeasurement | None) -> None:
                if got is not None:
                    console.print(_trial_line(got))
                elif batch is not None:
                    status.update(f"batch {batch:,}")

            yield hear


def _plain(batch: int | None, got: SizeMeasurement | None) -> None:
    if got is not None:
        print(_trial_line(got), file=sys.stderr, flush=True)


def _trial_line(got: SizeMeasurement) -> str:
    took = f"({format_duration(got.seconds)})"
    if not got.ok:
        words = got.status.replace("_", " ")
        why = f": {got.why}" if got.why and got.status != "out_of_memory" else ""
        return f"batch {got.batch:,}: {safe(words + why)} {took}"
    rate = 1e3 * len(got.sample_ms) / sum(got.sample_ms)
    return f"batch {got.batch:,}: {format_number(rate)} samples/s {took}"


_INTERRUPTED = 130


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


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--max", "largest", type=click.IntRange(2, 999_999), help="Largest size to try.")
@click.option("--min", "smallest", type=click.IntRange(1, 999_999), help="Smallest [its own].")
@click.option("--headroom", type=Share(), default="10%", help="Memory to keep free [10%].")
@click.option("--within", type=Share(), default="5%", help="Of the best throughput [5%].")
@click.option(
    "--fix", "fixes", multiple=True, metavar="NAME[=VALUE]", help="Applied at every size."
)
@click.option("--steps", type=click.IntRange(16), help="Steps of a trial [by the pace].")
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    help="Of steady steps in a trial [2].",
)
@click.option("--budget", default="10m", metavar="TIME", help="For all trials: 90s, 10m [10m].")
@click.option("--allow-writes", is_flag=True, help="Let the program write outside its folder.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder [.stepscope/batch-<id>].")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Say nothing on the way.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def batch(
    module: bool,
    largest: int | None,
    smallest: int | None,
    headroom: float,
    within: float,
    fixes: tuple[str, ...],
    steps: int | None,
    seconds: float,
    budget: str,
    allow_writes: bool,
    out: Path | None,
    as_json: bool,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
) -> int:
    """Find the best batch size of PROGRAM with its ARGUMENTS.

    Sizes are doubled, each in a process of its own that works in a copy of the working directory;
    running out of memory is an answer.
    """
    from stepscope.batch.program import BatchRequest
    from stepscope.batch.session import BatchSession
    from stepscope.launch.program import Program, check_program
    from stepscope.measure.trial_pool import parse_budget
    from stepscope.report.render.terminal.batch import print_batch

    _check_fixes(fixes)
    if smallest is not None and largest is not None and smallest > largest:
        raise UsageError(f"--min {smallest} is above --max {largest}")
    budget_s = parse_budget(budget)
    target = Program(program, arguments, module)
    check_program(target, Path.cwd())
    wanted = BatchRequest(fixes, smallest, largest, headroom, within, steps, seconds, budget_s)
    batching = BatchSession(target, out, Path.cwd(), allow_writes)
    try:
        with _progress(quiet) as hear:
            document, interrupted = batching.run(wanted, hear)
    except KeyboardInterrupt:
        print("stepscope: stopped before anything was measured", file=sys.stderr)
        return _INTERRUPTED
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_batch(document, sys.stdout)
    if interrupted:
        return _INTERRUPTED
    return 0 if document["knee"] else 1


def _check_fixes(fixes: tuple[str, ...]) -> None:
    """Raise UsageError for what is no fix, or decides the batch size itself."""
    from stepscope.fixes.registry import parse_fixes

    parse_fixes(fixes)
    for fix in fixes:
        if fix.partition("=")[0] == "batch":
            raise UsageError(f"--fix {fix}: the batch size is what is looked for; use --min, --max")
