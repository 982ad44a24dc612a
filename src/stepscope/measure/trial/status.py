"""How a trial ended: its status and reason; and how long it may run before it counts as hanging."""

from collections.abc import Mapping
from math import inf
from typing import Any, NamedTuple

from stepscope.fixes.registry import fix_named
from stepscope.launch.child import Outcome
from stepscope.measure.speed import FEWEST_STEADY
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.facts import AutoFact, AutoStop
from stepscope.record.fix import EPOCH_TOO_SMALL, OUT_OF_MEMORY, FixOutcome, FixState
from stepscope.record.fix_words import reason_words
from stepscope.record.problems import says_out_of_memory
from stepscope.record.trial import TrialReason, TrialStatus

Document = Mapping[str, Any]


class TrialEnd(NamedTuple):
    """How a trial ended; fields as in `Trial`."""

    status: TrialStatus
    reason: TrialReason | None = None
    detail: str | None = None
    fix: str | None = None
    code: int | None = None


def classify_trial(
    request: TrialRequest,
    outcome: Outcome,
    document: Document,
    steady: int,
    last_line: str,
    held: AutoFact | None = None,
) -> TrialEnd:
    """`document` is the run's summary, `steady` the number of its steady steps, `held` how its
    contests ended."""
    if outcome.timed_out:
        spent = request.limit_s is not None and wall_seconds(outcome) >= request.limit_s
        hung = TrialReason.OUT_OF_BUDGET if spent else TrialReason.HUNG
        return TrialEnd(TrialStatus.TIMED_OUT, hung)
    if outcome.given_up:
        return TrialEnd(TrialStatus.FAR_SLOWER, TrialReason.FAR_SLOWER)
    memory, error = document["run"]["out_of_memory"], document["run"]["error"]
    failed = outcome.exit_code != 0
    said = error["text"].strip().splitlines()[0] if error is not None and error["text"] else None
    if failed and (memory is not None or says_out_of_memory(last_line)):
        full, words = TrialStatus.OUT_OF_MEMORY, said or last_line or None
        if said is None and (memory or {}).get("device") is not None:
            return TrialEnd(full, TrialReason.HOST_MEMORY_FULL)
        return TrialEnd(full, TrialReason.ALLOCATION_FAILED, words)
    fixes = [*map(FixOutcome.from_json, document["fixes"])]
    for fix in fixes:
        if failed and fix.state is FixState.BROKE:
            return _fix_ended(request, fix, TrialStatus.BROKE)
    if outcome.signal is not None:
        killed = TrialReason.KILLED
        return TrialEnd(TrialStatus.FAILED, killed, last_line or None, code=outcome.signal)
    if failed:
        words = f"{error['type']}: {said}" if said else last_line or None
        code = outcome.exit_code
        return TrialEnd(TrialStatus.FAILED, TrialReason.PROGRAM_FAILED, words, code=code)
    names = {one.partition("=")[0] for one in request.fixes}  # without candidates of contests
    for fix in fixes:
        if fix.state is FixState.NOT_APPLICABLE and fix.name in names:
            return _fix_ended(request, fix, TrialStatus.NOT_APPLICABLE)
    if held is not None and held.stopped in _BY_CANDIDATE:
        fix_name, reason = next(iter(held.trying or ()), None), _BY_CANDIDATE[held.stopped]
        return TrialEnd(TrialStatus.BROKE, reason, held.detail, fix_name)
    return _steps_enough(request, document, steady)


_BY_CANDIDATE = {
    AutoStop.FIX_FAILED: TrialReason.FIX_BROKE,
    AutoStop.NOT_FINITE: TrialReason.NOT_FINITE,
}


def _fix_ended(request: TrialRequest, fix: FixOutcome, status: TrialStatus) -> TrialEnd:
    """The end if a fix broke the program, ran out of memory or found nothing to change."""
    broke = status is TrialStatus.BROKE
    reason = TrialReason.FIX_BROKE if broke else TrialReason.FIX_NOT_APPLIED
    if fix.reason == EPOCH_TOO_SMALL:
        reason = TrialReason.EPOCH_TOO_SMALL
    if broke and fix.reason == OUT_OF_MEMORY:
        status, reason = TrialStatus.OUT_OF_MEMORY, TrialReason.ALLOCATION_FAILED
    candidates = request.contests.candidates if request.contests else ()
    every = (one for fixes in (request.fixes, *candidates) for one in fixes)
    asked = next((one for one in every if one.split("=")[0] == fix.name), fix.name)
    return TrialEnd(status, reason, reason_words(fix)[-1 if broke else 0], asked)


def _steps_enough(request: TrialRequest, document: Document, steady: int) -> TrialEnd:
    """Whether a program that succeeded made enough steps, unless only losses are wanted."""
    if stopped := document["run"].get("recording_stopped"):
        return TrialEnd(TrialStatus.FAILED, TrialReason.OBSERVING_STOPPED, stopped)
    if not document["steps"]["count"]:
        detail = next(iter(document["problems"]), None)
        return TrialEnd(TrialStatus.FAILED, TrialReason.NO_STEPS, detail)
    if steady < FEWEST_STEADY and not (request.window or request.proof or request.contests):
        return TrialEnd(TrialStatus.FAILED, TrialReason.TOO_FEW_STEADY)
    return TrialEnd(TrialStatus.OK)


def wall_seconds(outcome: Outcome) -> float:
    """Wall time of the whole process."""
    return (outcome.ended_ns - outcome.started_ns) / 1e9


FIRST_S = 1800.0  # for trials of a program with no trials yet
_SLACK_S = 60.0
_TIMES, _LARGER_TIMES = 5.0, 40.0
_COMPILE_S = 900.0


def limit_s(request: TrialRequest, baseline: Trial | None) -> float:
    """A generous multiple of the baseline's time, plus time to compile if a fix may; no more than
    the budget allows."""
    return min(_hanging_s(request, baseline), request.limit_s or inf)


def _hanging_s(request: TrialRequest, baseline: Trial | None) -> float:
    if baseline is None:
        return FIRST_S
    fixes = [fix_named(text.partition("=")[0]) for text in request.fixes]
    times = _LARGER_TIMES if any(fix.step_grows for fix in fixes) else _TIMES
    longer = max(1.0, request.steps / max(1, baseline.steps))
    compiling = _COMPILE_S if any(fix.slow_start for fix in fixes) else 0.0
    held = request.contests
    if held is not None:  # they end by their own clock
        longer, compiling = 1.0, compiling + held.seconds
    return _SLACK_S + times * longer * baseline.seconds + compiling
