"""How a trial ended: its status and the reason; and how long it may run before it counts as
hanging.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from stepscope.fixes.registry import fix_named
from stepscope.launch.child import Outcome
from stepscope.measure.speed import FEWEST_STEADY
from stepscope.measure.trial import OK, Trial, TrialRequest
from stepscope.record.fix import FixState
from stepscope.record.out_of_memory import says_out_of_memory

Document = Mapping[str, Any]


class TrialStatus(NamedTuple):
    """As in `Trial`."""

    status: str
    why: str | None = None
    blame: str | None = None


def classify_trial(
    ask: TrialRequest, outcome: Outcome, document: Document, steady: int, last_line: str
) -> TrialStatus:
    """`document` is the run's summary, `steady` the number of its steady steps."""
    if outcome.timed_out:
        return TrialStatus("timed_out", f"it had not ended after {wall_seconds(outcome):.0f} s")
    memory = document["run"]["out_of_memory"]
    failed = outcome.exit_code != 0
    if failed and (memory is not None or says_out_of_memory(last_line)):
        where = (memory or {}).get("device")
        return TrialStatus(
            "out_of_memory", _out_of_memory(where, document["run"]["error"], last_line)
        )
    for fix in document["fixes"]:
        if failed and fix["state"] == FixState.BROKE:
            return TrialStatus("broke", fix["reasons"][-1], _as_asked(ask, fix["name"]))
    if failed:
        return TrialStatus("failed", _failure(outcome, document["run"]["error"], last_line))
    for fix in document["fixes"]:
        if fix["state"] == FixState.NOT_APPLICABLE:
            return TrialStatus("not_applicable", fix["reasons"][0], _as_asked(ask, fix["name"]))
    return _enough(ask, document, steady)


def _enough(ask: TrialRequest, document: Document, steady: int) -> TrialStatus:
    """Whether a program that ended well can be told the speed of, unless losses are wanted."""
    made = document["steps"]["count"]
    stopped = document["run"].get("recording_stopped")
    if not made or stopped:
        return TrialStatus("failed", stopped or (document["problems"] or ["no steps seen"])[0])
    if steady < FEWEST_STEADY and not (ask.window or ask.proof):
        short = f" of {ask.steps}" if made < ask.steps else ""
        return TrialStatus(
            "failed", f"{made}{short} steps, {steady} of them steady: too few to compare"
        )
    return TrialStatus(OK)


def _failure(outcome: Outcome, error: Mapping[str, Any] | None, last_line: str) -> str:
    if outcome.signal is not None:
        return f"ended by signal {outcome.signal}: {last_line}".removesuffix(": ")
    if error is not None and error["text"]:
        return f"{error['type']}: {error['text'].strip().splitlines()[0]}"
    return last_line or f"exit code {outcome.exit_code}"


def _out_of_memory(where: Any, error: Mapping[str, Any] | None, last_line: str) -> str:
    if error is not None and error["text"]:
        return str(error["text"].strip().splitlines()[0])
    return last_line if where is None else "the kernel ended it: the machine's memory was full"


def _as_asked(ask: TrialRequest, name: str) -> str:
    return next((fix for fix in ask.fixes if fix.split("=")[0] == name), name)


def wall_seconds(outcome: Outcome) -> float:
    """Wall time of the whole process."""
    return (outcome.ended_ns - outcome.started_ns) / 1e9


FIRST_S = 1800.0
"""For trials of a program of which nothing is known yet."""
_SLACK_S = 60.0
_TIMES, _LARGER_TIMES = 5.0, 40.0
_COMPILE_S = 900.0


def limit_s(ask: TrialRequest, baseline: Trial | None) -> float:
    """A generous multiple of what the program took unfixed, and time to compile where it may."""
    if baseline is None:
        return FIRST_S
    fixes = [fix_named(text.partition("=")[0]) for text in ask.fixes]
    times = _LARGER_TIMES if any(fix.step_grows for fix in fixes) else _TIMES
    longer = max(1.0, ask.steps / max(1, baseline.steps))
    compiling = _COMPILE_S if any(fix.slow_start for fix in fixes) else 0.0
    return _SLACK_S + times * longer * baseline.seconds + compiling
