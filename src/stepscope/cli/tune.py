"""`stepscope tune`: try fixes, keep what is faster, prove that training does the same."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from stepscope.report.text import format_duration, format_number, safe

_LONGEST = 48


@contextmanager
def _progress(tuning: Any, quiet: bool) -> Iterator[Callable[[Any], None]]:
    """What hears of each trial as it starts and ends."""
    if quiet:
        yield lambda event: None
        return
    if not sys.stderr.isatty():
        yield _plain
        return
    from rich.console import Console
    from rich.status import Status

    with Status("starting", console=Console(stderr=True)) as status:

        def hear(event: Any) -> None:
            if event.trial is None:
                left = f"{format_duration(event.spent_s)} of {format_duration(event.budget_s)}"
                status.update(f"{trial_name(event.ask)}   {left}")
            else:
                status.console.print(_line(event), markup=False, highlight=False)

        yield hear


def trial_name(ask: Any) -> str:
    """`workers=4 + pin`, `as it is, seed 2`, `control, seed 1`."""
    words = " + ".join(ask.fixes) or ("patched" if ask.patched else "as it is")
    words = words if len(words) <= _LONGEST else "…" + words[1 - _LONGEST :]
    if ask.window:
        words = "a first look"
    if ask.perturb is not None:
        words = f"control, rounded to {ask.perturb}"
    words += ", draws held" * ask.held
    return safe(words + (f", seed {ask.seed}" if ask.seed else ""))


def _plain(event: Any) -> None:
    if event.trial is not None:
        print(_line(event), file=sys.stderr, flush=True)


def _line(event: Any) -> str:
    trial = event.trial
    again = " (known)" if event.repeated else ""
    head = f"{trial.number:>3}  {trial_name(event.ask):<{_LONGEST}}"
    if not trial.ok:
        why = f": {safe(trial.why)}" if trial.why else ""
        return f"{head}  {trial.status.replace('_', ' ')}{why}{again}"
    if not trial.step_ms:
        return f"{head}  {trial.steps} steps  ({format_duration(trial.seconds)}){again}"
    return f"{head} {format_number(trial.mean_ms):>8} ms  ({format_duration(trial.seconds)}){again}"


ALLOW = ("exact", "numeric", "semantic")
OBJECTIVES = ("throughput", "memory", "energy")


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--budget", default="10m", metavar="TIME", help="For all trials: 90s, 10m, 1h [10m].")
@click.option(
    "--allow",
    type=click.Choice(ALLOW),
    default="numeric",
    help="What fixes may change: nothing, rounding, training [numeric].",
)
@click.option("--only", multiple=True, metavar="F,…", help="Try these fixes alone.")
@click.option("--skip", multiple=True, metavar="F,…", help="Leave these fixes out.")
@click.option(
    "--objective",
    type=click.Choice(OBJECTIVES),
    default="throughput",
    help="What is to become better [throughput].",
)
@click.option("--steps", type=click.IntRange(16), help="Steps of a trial [by the program's pace].")
@click.option("--seeds", type=click.IntRange(2, 20), default=3, help="Seeds of the proof [3].")
@click.option("--on", metavar="DEVICE", help="Where trials run: cpu, cuda:1 [the program's own].")
@click.option("--allow-writes", is_flag=True, help="Let the program write outside its folder.")
@click.option("--price-per-hour", type=click.FloatRange(0), help="Of the machine, any currency.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder [.stepscope/tune-<id>].")
@click.option("--force", is_flag=True, help="Replace what is in --out.")
@click.option("--resume", type=click.Path(path_type=Path), help="Go on in this tune's folder.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="Say nothing on the way.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def tune(
    module: bool,
    budget: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    out: Path | None,
    force: bool,
    resume: Path | None,
    as_json: bool,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> int:
    """Try fixes on PROGRAM with its ARGUMENTS, which nobody edits.

    Trials run in copies of the working directory and write nowhere else. What is faster is kept
    if losses still match; the rest is said with its reason.
    """
    from stepscope.compare.open_sides import remember_noise_of
    from stepscope.launch.program import Program, check_program
    from stepscope.measure.trial_pool import parse_budget
    from stepscope.report.render.terminal.tune import print_tune
    from stepscope.tune.request import TuneRequest, check_fix_names
    from stepscope.tune.session import open_tune

    target = Program(program, arguments, module)
    check_program(target, Path.cwd())
    request = TuneRequest(
        target,
        parse_budget(budget),
        only=check_fix_names(only, "only"),
        skip=check_fix_names(skip, "skip"),
        **options,
    )
    with (
        open_tune(request, out or resume, resume is not None, force, Path.cwd()) as tuning,
        _progress(tuning, quiet) as hear,
    ):
        document = tuning.run(hear)
    remember_noise_of(tuning.folder)
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_tune(document, sys.stdout)
    return 0
