"""How a trial ended: its status and reason; and how long it may run before it counts as hanging."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from stepscope.launch.child import Outcome
from stepscope.measure.speed import FEWEST_STEADY
from stepscope.measure.trial import Trial, TrialRequest
from stepscope.probe.memory_history import is_out_of_memory
from stepscope.record.trial import TrialReason, TrialStatus

_MEMORY = re.compile(r"(?i)cannot allocate memory|bad_alloc|libgomp: Thread creation failed")
"""What libraries print that end a process themselves when memory is refused to them."""
_STOPPED = "observing stopped"
"""How the problem reads in runs recorded before problems had a kind."""
Document = Mapping[str, Any]


class TrialEnd(NamedTuple):
    """As in `Trial`."""

    status: TrialStatus
    reason: TrialReason | None = None
    detail: str | None = None
    fix: str | None = None
    code: int | None = None


def classify_trial(
    request: TrialRequest, outcome: Outcome, document: Document, steady: int, last_line: str
) -> TrialEnd:
    """`document` is the run's summary, `steady` the number of its steady steps."""
    if outcome.timed_out:
        return TrialEnd(TrialStatus.TIMED_OUT, TrialReason.HUNG)
    memory, error = document["run"]["out_of_memory"], document["run"]["error"]
    failed = outcome.exit_code != 0
    if failed and (memory is not None or _says_out_of_memory(last_line)):
        return _out_of_memory(memory, error, last_line)
    for fix in document["fixes"]:
        if failed and fix["state"] == "broke":
            return _fix_ended(request, fix, TrialStatus.BROKE, -1)
    if failed:
        return _failed(outcome, error, last_line)
    for fix in document["fixes"]:
        if fix["state"] == "not applicable":
            return _fix_ended(request, fix, TrialStatus.NOT_APPLICABLE, 0)
    return _steps_enough(request, document, steady)


def _fix_ended(
    request: TrialRequest, fix: Mapping[str, Any], status: TrialStatus, place: int
) -> TrialEnd:
    """A fix that broke the program or found nothing to change; memory that ran out is told so."""
    broke = status is TrialStatus.BROKE
    reason = TrialReason.FIX_BROKE if broke else TrialReason.FIX_NOT_APPLIED
    record = fix.get("broke") or next(iter(fix.get("not_applied") or ()), None) or {}
    if record.get("reason") == TrialReason.EPOCH_TOO_SMALL:
        reason = TrialReason.EPOCH_TOO_SMALL
    if broke and record.get("reason") == TrialStatus.OUT_OF_MEMORY:
        status, reason = TrialStatus.OUT_OF_MEMORY, TrialReason.ALLOCATION_FAILED
    name = fix["name"]
    asked = next((one for one in request.fixes if one.split("=")[0] == name), name)
    return TrialEnd(status, reason, fix["reasons"][place], asked)


def _steps_enough(request: TrialRequest, document: Document, steady: int) -> TrialEnd:
    """Whether a program that ended well made enough steps, unless only losses are wanted."""
    problems = document["problems"]
    stopped = [one for one in problems if _observing_stopped(one)]
    if stopped:
        return TrialEnd(
            TrialStatus.FAILED, TrialReason.OBSERVING_STOPPED, _problem_text(stopped[0])
        )
    if not document["steps"]["count"]:
        detail = _problem_text(problems[0]) if problems else None
        return TrialEnd(TrialStatus.FAILED, TrialReason.NO_STEPS, detail)
    if steady < FEWEST_STEADY and not (request.window or request.proof):
        return TrialEnd(TrialStatus.FAILED, TrialReason.TOO_FEW_STEADY)
    return TrialEnd(TrialStatus.OK)


def _observing_stopped(problem: Any) -> bool:
    if isinstance(problem, Mapping):
        return bool(problem.get("kind") == "recording_stopped")
    return str(problem).startswith(_STOPPED)


def _problem_text(problem: Any) -> str:
    return str(problem["text"] if isinstance(problem, Mapping) else problem)


def _failed(outcome: Outcome, error: Mapping[str, Any] | None, last_line: str) -> TrialEnd:
    if outcome.signal is not None:
        return TrialEnd(
            TrialStatus.FAILED, TrialReason.KILLED, last_line or None, code=outcome.signal
        )
    said = _first_line(error)
    detail = f"{error['type']}: {said}" if error is not None and said else last_line or None
    return TrialEnd(TrialStatus.FAILED, TrialReason.PROGRAM_FAILED, detail, code=outcome.exit_code)


def _says_out_of_memory(line: str) -> bool:
    """Whether the last line of a program's output, mostly of a traceback, means it."""
    name, _, text = line.partition(":")
    return is_out_of_memory(name, text) or _MEMORY.search(line) is not None


def _out_of_memory(
    memory: Mapping[str, Any] | None, error: Mapping[str, Any] | None, last_line: str
) -> TrialEnd:
    said = _first_line(error)
    if said is None and (memory or {}).get("device") is not None:
        return TrialEnd(TrialStatus.OUT_OF_MEMORY, TrialReason.HOST_MEMORY_FULL)
    return TrialEnd(
        TrialStatus.OUT_OF_MEMORY, TrialReason.ALLOCATION_FAILED, said or last_line or None
    )


def _first_line(error: Mapping[str, Any] | None) -> str | None:
    return error["text"].strip().splitlines()[0] if error is not None and error["text"] else None


def wall_seconds(outcome: Outcome) -> float:
    """Wall time of the whole process."""
    return (outcome.ended_ns - outcome.started_ns) / 1e9


FIRST_S = 1800.0
"""For trials of a program of which nothing is known yet."""
_SLACK_S = 60.0
_TIMES, _LARGER_TIMES = 5.0, 40.0
_COMPILE_S = 900.0
_COMPILING = ("compile", "cuda_graph", "cudnn_benchmark")
_LARGER = ("batch", "accumulate")  # a step is then as long as several


def limit_s(request: TrialRequest, baseline: Trial | None) -> float:
    """A generous multiple of what the program took unfixed, and time to compile where it may."""
    if baseline is None:
        return FIRST_S
    names = {fix.split("=")[0] for fix in request.fixes}
    times = _TIMES if names.isdisjoint(_LARGER) else _LARGER_TIMES
    longer = max(1.0, request.steps / max(1, baseline.steps))
    compiling = 0.0 if names.isdisjoint(_COMPILING) else _COMPILE_S
    return _SLACK_S + times * longer * baseline.seconds + compiling
