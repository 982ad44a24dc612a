"""How a trial ended: a status, and one line on why."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from stepscope.launch.child import Outcome
from stepscope.probe.out_of_memory import is_out_of_memory
from stepscope.tune.ask import Ask
from stepscope.tune.speed import LEAST
from stepscope.tune.trial import OK

_MEMORY = re.compile(r"(?i)cannot allocate memory|bad_alloc|libgomp: Thread creation failed")
"""What libraries say who end a process themselves when memory is refused to them."""
Document = Mapping[str, Any]


class Ending(NamedTuple):
    """As in `Trial`."""

    status: str
    why: str | None = None
    blame: str | None = None


def ending(ask: Ask, outcome: Outcome, document: Document, steady: int, last_line: str) -> Ending:
    """`document` is the run's summary, `steady` the number of its steady steps."""
    if outcome.timed_out:
        return Ending("timed_out", f"it had not ended after {seconds(outcome):.0f} s")
    memory = document["run"]["out_of_memory"]
    failed = outcome.exit_code != 0
    if failed and (memory is not None or _says_out_of_memory(last_line)):
        where = (memory or {}).get("device")
        return Ending("out_of_memory", _out_of_memory(where, document["run"]["error"], last_line))
    for fix in document["fixes"]:
        if failed and fix["state"] == "broke":
            return Ending("broke", fix["reasons"][-1], _as_asked(ask, fix["name"]))
    if failed:
        return Ending("failed", _failure(outcome, document["run"]["error"], last_line))
    for fix in document["fixes"]:
        if fix["state"] == "not applicable":
            return Ending("not_applicable", fix["reasons"][0], _as_asked(ask, fix["name"]))
    return _enough(ask, document, steady)


def _enough(ask: Ask, document: Document, steady: int) -> Ending:
    """Whether a program that ended well can be told the speed of, unless losses are wanted."""
    made = document["steps"]["count"]
    stopped = [text for text in document["problems"] if text.startswith("observing stopped")]
    if not made or stopped:
        return Ending("failed", (stopped or document["problems"] or ["no steps seen"])[0])
    if steady < LEAST and not (ask.window or ask.proof):
        short = f" of {ask.steps}" if made < ask.steps else ""
        return Ending("failed", f"{made}{short} steps, {steady} of them steady: too few to compare")
    return Ending(OK)


def _failure(outcome: Outcome, error: Mapping[str, Any] | None, last_line: str) -> str:
    if outcome.signal is not None:
        return f"ended by signal {outcome.signal}: {last_line}".removesuffix(": ")
    if error is not None and error["text"]:
        return f"{error['type']}: {error['text'].strip().splitlines()[0]}"
    return last_line or f"exit code {outcome.exit_code}"


def _says_out_of_memory(line: str) -> bool:
    """Whether the last line a program said, mostly that of a traceback, means it."""
    name, _, text = line.partition(":")
    return is_out_of_memory(name, text) or _MEMORY.search(line) is not None


def _out_of_memory(where: Any, error: Mapping[str, Any] | None, last_line: str) -> str:
    if error is not None and error["text"]:
        return str(error["text"].strip().splitlines()[0])
    return last_line if where is None else "the kernel ended it: the machine's memory was full"


def _as_asked(ask: Ask, name: str) -> str:
    return next((fix for fix in ask.fixes if fix.split("=")[0] == name), name)


def seconds(outcome: Outcome) -> float:
    """Wall time of the whole process."""
    return (outcome.ended_ns - outcome.started_ns) / 1e9
