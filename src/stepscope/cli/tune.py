"""`stepscope tune`: try fixes, keep what is faster, prove that training does the same."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.progress import Progress, note_misplaced, progress
from stepscope.record.units import format_duration, format_number, plural
from stepscope.report.text import keep_end, keep_start

if TYPE_CHECKING:
    from stepscope.measure.trial.record import Trial, TrialRequest
    from stepscope.tune.tuner import TrialEvent

_LONGEST = 48
_INTERRUPTED = 130


class _Shown:
    """Shows each trial as it starts and ends, and the time as it passes."""

    def __init__(self, display: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._clock = display, clock
        self._said = self._pressed = False

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """Remember Ctrl-C between trials: Python loses one that arrives in some callbacks."""

        def press(number: int, frame: object) -> None:
            self._pressed = True
            raise KeyboardInterrupt

        before = signal.getsignal(signal.SIGINT)
        if before is signal.default_int_handler:
            signal.signal(signal.SIGINT, press)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def __call__(self, event: "TrialEvent") -> None:
        if self._pressed and not event.interrupted:
            raise KeyboardInterrupt
        if event.interrupted and not self._said:
            self._said = True
            best = "proving and confirming the best so far; Ctrl-C again stops now"
            self._display.line(f"     interrupted: {best}")
        if event.trial is not None:
            self._display.line(trial_line(event, event.trial))
            return
        began, total = self._clock(), format_duration(event.budget_s)

        def left() -> str:
            gone = event.spent_s + self._clock() - began
            return f"{format_duration(gone)} of {total}  {_later(event)}"

        self._display.update(trial_name(event.request), left=left)


def _later(event: "TrialEvent") -> str:
    """`next: pin, amp=bf16`, or the stage that follows."""
    from stepscope.tune.tuner import Stage

    if event.stage is Stage.SEARCH and event.waiting:
        return f"next: {', '.join(event.waiting)}"
    stages = [*Stage]
    following = stages[stages.index(event.stage) + 1 :]
    return f"next: {following[0]}" if following else ""


def trial_line(event: "TrialEvent", trial: "Trial") -> str:
    """A finished trial: its number, name, step time and how long it took."""
    name = trial_name(event.request)
    again = " (known)" if event.repeated else ""
    took = f"({format_duration(trial.seconds)}){again}"
    if not trial.ok:
        told = f"  {trial.status.label}: {trial.failure}{again}"
    elif event.request.contests is not None:
        held = trial.contests
        said = f"{sum(one.kept for one in held)} of {len(held)} faster"
        told = f"  {said if held else 'no contest finished'}  {took}"
    elif not trial.step_ms:
        told = f"  {trial.steps} steps  {took}"
    else:
        told = f" {format_number(trial.mean_ms):>8} ms  {took}"
    return f"{trial.number:>3}  {name:<{_LONGEST}}{told}"


def trial_name(request: "TrialRequest") -> str:
    """`workers=4 + pin`, `baseline, seed 2`, `control, seed 1`, `in place: amp=bf16, foreach`."""
    words = " + ".join(request.fixes) or ("patched" if request.patched else "baseline")
    if request.contests is not None:
        names = [" + ".join(one) for one in request.contests.candidates]
        words = keep_start(f"in place: {', '.join(names)}", _LONGEST)
    else:
        words = keep_end(words, _LONGEST)
    if request.window:
        words = "scout run"
    if request.perturb is not None:
        words = f"control, rounded to {request.perturb}"
    words += ", draws per batch" if request.draws_per_batch else ""
    return words + (f", seed {request.seed}" if request.seed else "")


_ALLOW = click.Choice(("exact", "numeric", "semantic"))
_MAY_CHANGE = "What fixes may change: nothing, rounding, training [numeric]."
_OBJECTIVE = click.Choice(("throughput", "memory", "energy"))
_BEST = "throughput"


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="PROGRAM is a module, as in python -m.")
@click.option("--budget", default="10m", metavar="TIME", help="Time for all trials: 10m, 1h [10m].")
@click.option("--allow", type=_ALLOW, default="numeric", help=_MAY_CHANGE)
@click.option("--only", multiple=True, metavar="F,…", help="Try only these fixes.")
@click.option("--skip", multiple=True, metavar="F,…", help="Skip these fixes.")
@click.option("--objective", type=_OBJECTIVE, default=_BEST, help=f"What to improve [{_BEST}].")
@click.option("--steps", type=click.IntRange(16), help="Steps per trial [by the program's speed].")
@click.option("--seeds", type=click.IntRange(2, 20), default=3, help="Seeds of the proof [3].")
@click.option("--on", metavar="DEVICE", help="Where trials run: cpu, cuda:1 [the program's own].")
@click.option("--allow-writes", is_flag=True, help="Let the program write outside its folder.")
@click.option("--unguarded", is_flag=True, help="Run even if nothing can protect your files.")
@click.option(
    "--price-per-hour", type=click.FloatRange(0), help="Machine's price, in any currency."
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder [.stepscope/tune-<id>].")
@click.option("--force", is_flag=True, help="Replace what is in --out.")
@click.option("--resume", type=click.Path(path_type=Path), help="Continue the tune in this folder.")
@click.option("--prove", is_flag=True, help="With --resume: continue only its unclear proof.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--quiet", is_flag=True, help="No progress.")
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
    """Try fixes on PROGRAM with its ARGUMENTS, without editing it.

    Trials run in copies of the working directory and write nowhere else. A fix is kept if it is
    faster and the losses still match; every other one is listed with the reason.
    """
    import msgspec

    from stepscope.compare.open_sides import remember_noise_of
    from stepscope.launch.program import Program, check_program
    from stepscope.measure.isolation import choose_wall
    from stepscope.measure.trial.pool import parse_budget
    from stepscope.record.errors import UsageError
    from stepscope.record.probe_options import Wall
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.machine import UNGUARDED
    from stepscope.report.story.tune.story import resume_command, tune_story
    from stepscope.tune.request import TuneRequest, check_fix_names
    from stepscope.tune.tuner import open_tune

    if options["prove"] and resume is None:
        raise UsageError("--prove continues an earlier tune: name it with --resume")
    target = Program(program, arguments, module)
    check_program(target, Path.cwd())
    note_misplaced(target)
    request = TuneRequest(
        target,
        parse_budget(budget),
        only=check_fix_names(only, "only"),
        skip=check_fix_names(skip, "skip"),
        **options,
    )
    wall = choose_wall(request.allow_writes, request.unguarded)
    if wall is Wall.NONE and not request.allow_writes:
        print(f"stepscope: {UNGUARDED}", file=sys.stderr)
    result, interrupted = None, False
    with open_tune(request, out or resume, resume is not None, force, Path.cwd()) as tuning:
        try:
            with progress(quiet) as display:
                shown = _Shown(display)
                with shown.hearing():
                    result = tuning.run(shown)
            interrupted = tuning.interrupted
            remember_noise_of(tuning.folder)
            if as_json:
                print(msgspec.json.format(msgspec.json.encode(result), indent=1).decode())
            else:
                print_story(tune_story(result), sys.stdout)
        except KeyboardInterrupt:
            interrupted, result = True, None
    if interrupted and (as_json or result is None):
        asked = request.settings()
        went = (asked.program, asked.argv, str(tuning.folder), request.budget_s, request.prove)
        command = resume_command(asked, *went)
        done = f"after {plural(tuning.trials, 'trial')}" if tuning.trials else "in the first trial"
        print(f"stepscope: interrupted {done}; go on with: {command}", file=sys.stderr)
    if interrupted:
        exec("")  # lets Python forget an interrupt inside an exec: it would end by SIGINT for it
    return _INTERRUPTED if interrupted else 0
