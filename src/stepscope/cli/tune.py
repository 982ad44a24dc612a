"""`stepscope tune`: try fixes, keep what is faster, prove that training does the same."""

import json
import sys
from pathlib import Path
from typing import Any

import click

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
    from stepscope.cli.tune_progress import progress
    from stepscope.launch.program import Program, check
    from stepscope.report.compare_sides import remember_result
    from stepscope.report.tune import print_tune
    from stepscope.tune.budget import parse_budget
    from stepscope.tune.request import Request, check_names
    from stepscope.tune.tune import open_tune

    target = Program(program, arguments, module)
    check(target, Path.cwd())
    request = Request(
        target,
        parse_budget(budget),
        only=check_names(only, "only"),
        skip=check_names(skip, "skip"),
        **options,
    )
    with (
        open_tune(request, out or resume, resume is not None, force, Path.cwd()) as tuning,
        progress(tuning, quiet) as hear,
    ):
        document = tuning.run(hear)
    remember_result(tuning.folder)
    if as_json:
        json.dump(document, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        print_tune(document, sys.stdout)
    return 0
