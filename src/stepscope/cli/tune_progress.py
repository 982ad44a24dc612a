"""How a tune goes: a line that changes on a terminal, plain lines elsewhere; on stderr."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepscope.report.text import milliseconds, safe, seconds

_LONGEST = 48


@contextmanager
def progress(tuning: Any, quiet: bool) -> Iterator[Callable[[Any], None]]:
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
                left = f"{seconds(event.spent_s)} of {seconds(event.budget_s)}"
                status.update(f"{name(event.ask)}   {left}")
            else:
                status.console.print(_line(event), markup=False, highlight=False)

        yield hear


def name(ask: Any) -> str:
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
    head = f"{trial.number:>3}  {name(event.ask):<{_LONGEST}}"
    if not trial.ok:
        why = f": {safe(trial.why)}" if trial.why else ""
        return f"{head}  {trial.status.replace('_', ' ')}{why}{again}"
    if not trial.step_ms:
        return f"{head}  {trial.steps} steps  ({seconds(trial.seconds)}){again}"
    return f"{head} {milliseconds(trial.mean_ms):>8} ms  ({seconds(trial.seconds)}){again}"
