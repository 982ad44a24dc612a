"""What may be claimed from the readings of benchmarks/trace_reading.py. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median as middle
from typing import Any

TIMES_FASTER, SMALL_BYTES = 25.0, 200e6  # than HTA; at 400 MB
LARGE_S, LARGE_BYTES = 8.0, 500e6
COMMAND_S = 0.6  # `stepscope analyze` of 54 MB


@dataclass(frozen=True)
class Goal:
    """A goal, what was measured (None: nothing was) and whether it is met."""

    goal: str
    measured: float | None
    at_least: bool  # the measured value is only a lower bound
    verdict: str  # "met", "missed" or "not measured"


def goals_of(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Those of a comparison with HTA, of stepscope alone on a larger trace, or of the command.

    All are missed where stepscope failed or had to be ended in any round.
    """
    own, hta, command = (of(case, name) for name in ("stepscope", "hta", "command"))
    ours = finished(own)
    if command:
        goals = [_below(f"under {COMMAND_S} s", median(finished(command), "wall_s"), COMMAND_S)]
    elif case["alone"]:
        goals = [
            _below(f"under {LARGE_S:.0f} s", median(ours, "wall_s"), LARGE_S),
            _below("under 500 MB", median(ours, "peak_bytes"), LARGE_BYTES),
        ]
    else:
        faster = f"at least {TIMES_FASTER:.0f} times as fast as HTA"
        goals = [
            _above(faster, hta, ours, "wall_s", TIMES_FASTER),
            _below("under 200 MB", median(ours, "peak_bytes"), SMALL_BYTES),
        ]
    if any("failed" in reading or "over_s" in reading for reading in (*own, *command)):
        goals = [Goal(goal.goal, None, False, "missed") for goal in goals]
    return [asdict(goal) for goal in goals]


def _above(
    goal: str,
    theirs: Sequence[Mapping[str, Any]],
    ours: Sequence[Mapping[str, Any]],
    key: str,
    wanted: float,
) -> Goal:
    a, b = median(theirs, key), median(ours, key)
    if a is None or b is None:
        return Goal(goal, None, False, "not measured")
    stopped = any("over_s" in reading for reading in theirs)
    if a / b >= wanted:
        return Goal(goal, a / b, stopped, "met")
    return Goal(goal, a / b, stopped, "not measured" if stopped else "missed")


def _below(goal: str, value: float | None, limit: float) -> Goal:
    if value is None:
        return Goal(goal, None, False, "not measured")
    return Goal(goal, value, False, "met" if value < limit else "missed")


def of(case: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    """The readings of one reader."""
    return [reading for reading in case["readings"] if reading["contender"] == name]


def finished(readings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that came to their end."""
    return [reading for reading in readings if "found" in reading]


def median(readings: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Of all that ran; None where none did."""
    values = [r[key] for r in readings if "peak_bytes" in r]
    return middle(values) if values else None
