"""`stepscope run`: observe a program nobody edited."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.fix import FixKind
from stepscope.record.probe_options import AutoOptions, ProbeOptions, RankRole

if TYPE_CHECKING:
    from stepscope.launch.program import Program


def _share(_: click.Context, __: click.Parameter, text: str) -> float:
    """A percentage of the program's time as a share."""
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share <= 1 or not text.endswith("%"):
        raise click.BadParameter(f"{text!r} is not a percentage up to 100%, such as 0.5%")
    return share


class _Run(click.Command):
    """`--auto` alone means `--auto=exact`; the word that follows it is the program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [one for one in self.params if isinstance(one, click.Option)]
        valued = {name for one in options if not one.is_flag for name in one.opts}
        given: list[str] = []
        left = iter(args)
        for arg in left:
            given.append(f"{arg}={FixKind.EXACT}" if arg == "--auto" else arg)
            if arg in valued - {"--auto"}:
                given += [value for value in [next(left, None)] if value is not None]
            elif arg == "--" or not arg.startswith("-"):
                break
        return super().parse_args(ctx, [*given, *left])


@click.command(cls=_Run, context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--steps", type=click.IntRange(1), help="End the program cleanly after N steps.")
@click.option("--warmup", type=click.IntRange(0), help="Steps left out as warm-up [detected].")
@click.option("--window", type=click.IntRange(1), default=6, help="Steps recorded per kernel [6].")
@click.option("--no-window", is_flag=True, help="No kernel-level recording.")
@click.option("--window-at", type=click.IntRange(2), help="First step of the window [detected].")
@click.option(
    "--fix", "fixes", multiple=True, metavar="NAME[=VALUE]", help="Apply a fix (stepscope fixes)."
)
@click.option(
    "--auto",
    type=click.Choice([FixKind.EXACT.value, FixKind.NUMERIC.value]),
    metavar="[=exact|numeric]",
    help="Try fixes while it runs and keep what gains [exact]. Records no kernels.",
)
@click.option("--python", is_flag=True, help="Sample the host's Python code too (py-spy).")
@click.option("--memory", is_flag=True, help="Find the lines behind the memory peak.")
@click.option("--nvtx", is_flag=True, help="Mark steps and phases for Nsight Systems.")
@click.option("--overhead", default="1%", callback=_share, help="What observing may cost [1%].")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder [.stepscope/<id>].")
@click.option("--force", is_flag=True, help="Replace the run in --out.")
@click.option("--ranks", type=click.IntRange(1), help="Start N ranks of it with torch's launcher.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Run it N times [1].")
@click.option("--quiet-machine", is_flag=True, help="Wait until the machine is quiet.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    help="End the program after this many seconds.",
)
@click.option("--quiet", is_flag=True, help="Print only errors.")
@click.argument("program")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def run(
    module: bool,
    window: int,
    no_window: bool,
    fixes: tuple[str, ...],
    auto: str | None,
    python: bool,
    memory: bool,
    out: Path | None,
    force: bool,
    ranks: int | None,
    repeat: int,
    quiet_machine: bool,
    timeout: float | None,
    quiet: bool,
    program: str,
    arguments: tuple[str, ...],
    **options: Any,
) -> int:
    """Run PROGRAM with its ARGUMENTS as plain Python would, and observe it.

    stepscope speaks on stderr; the exit code is the program's own.
    """
    from stepscope.cli.progress import note_misplaced
    from stepscope.fixes.registry import fix_variables, parse_fixes
    from stepscope.launch.observed_run import RunRequest, observe_program
    from stepscope.launch.program import Program, check_program, find_command, ranks_program
    from stepscope.store.folder import create_folder

    if options["nvtx"] and (python or memory):
        raise UsageError(
            "--nvtx is for a run under Nsight Systems: leave out --python and --memory"
        )
    target = find_command(Program(program, arguments, module))
    check_program(target, Path.cwd())
    if not quiet:
        note_misplaced(target)
    variables = fix_variables(parse_fixes(fixes))
    if ranks is not None:
        target = ranks_program(target, ranks)
        if "GLOO_SOCKET_IFNAME" not in os.environ:
            variables = {**variables, "GLOO_SOCKET_IFNAME": "lo"}
    live = not quiet and sys.stderr.isatty()
    request = RunRequest(target, timeout, python, live, variables)
    memory_of = _memory_of() if memory else None
    if quiet_machine:
        _wait_until_quiet(quiet)
    exit_code = 0
    several = out if repeat > 1 else None
    places = [several / str(n) if several else out for n in range(1, repeat + 1)]
    folders = [create_folder(place, force, Path.cwd()) for place in places]
    for number, folder in enumerate(folders, start=1):
        probing = ProbeOptions(
            folder=str(folder.absolute()),
            launched_ns=0,
            window=0 if no_window or auto else window,
            stacks=0 if memory_of == "cpu" else 2,
            memory=memory_of,
            python=python,
            fixes=fixes,
            auto=_auto_options(auto, folder, target, quiet) if auto else None,
            ranks=RankRole.LAUNCHED if target.foreign else RankRole.PROGRAM,
            **options,
        )
        outcome = observe_program(request, probing)
        exit_code = exit_code or outcome.exit_code
        if not quiet:
            _tell(folder, number, repeat)
        if outcome.signal is not None or outcome.timed_out:
            for unused in folders[number:]:
                unused.rmdir()
            break
    return exit_code


def _auto_options(allow: str, folder: Path, program: "Program", quiet: bool) -> AutoOptions:
    from stepscope.measure.prediction import kept_earlier

    return AutoOptions(FixKind(allow), kept_earlier(folder, program), quiet)


_LONGEST_WAIT_S = 600.0


def _wait_until_quiet(quiet: bool) -> None:
    from stepscope.cli.progress import progress
    from stepscope.hardware.process_tree import wait_until_quiet

    with progress(quiet, "checking whether the machine is quiet") as shown:
        heard: list[float] = []

        def told(cores: float) -> None:
            if not heard:
                shown.line("stepscope: the machine is busy; waiting, at most 10 minutes")
            heard.append(cores)
            shown.update(f"waiting for a quiet machine: {cores:.1f} cores in use")

        if not wait_until_quiet(_LONGEST_WAIT_S, told):
            shown.line("stepscope: still busy after 10 minutes; running beside other programs")


def _memory_of() -> str:
    """The device whose memory --memory follows: the GPU if there is one."""
    from importlib.util import find_spec

    from stepscope.hardware.gpus import visible_gpu_index
    from stepscope.record.errors import MissingExtra

    if visible_gpu_index(os.environ) is not None:
        return "cuda"
    if find_spec("memray") is None:
        raise MissingExtra("memray", "memory", "--memory without a GPU")
    return "cpu"


def _tell(folder: Path, number: int, repeat: int) -> None:
    """The summary on stderr. Whatever fails here, the program's exit code stands."""
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.narrator import screen_of
    from stepscope.results.load import load

    try:
        if repeat > 1:
            print(f"\nrun {number} of {repeat}", file=sys.stderr)
        print_story(screen_of(load(folder)), sys.stderr)
    except StepscopeError as problem:
        print(f"stepscope: {problem}", file=sys.stderr)
    except Exception as problem:
        print(f"stepscope: cannot show the run in {folder}: {problem!r}", file=sys.stderr)
