"""What a program × fix pair tells, and what all of them tell together. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

GOALS = {"median": 0.10, "p90": 0.25}
PROMISED = 1.10
"""A speedup above it is a promise that must not turn out a loss."""
Pair = Mapping[str, Any]


def judged(pair: Pair) -> dict[str, Any]:
    """The pair with its measured speedup, the prediction's error and whether its range held.

    A pair has `base` and `fixed` (the steady steps of each process, ms), `promise` and `unfit`.
    """
    from stepscope.stats.verdict import compare_processes

    kept = {key: value for key, value in pair.items() if key not in ("base", "fixed", "unfit")}
    if pair["unfit"] or not pair["fixed"] or not pair["base"]:
        reasons = list(pair["unfit"]) or ["no run ended well"]
        return kept | {"status": "not applicable", "reasons": reasons}
    found = compare_processes(pair["base"], pair["fixed"])
    kept |= {
        "base_ms": [_mean(one) for one in pair["base"]],
        "fixed_ms": [_mean(one) for one in pair["fixed"]],
        "measured": {
            "speedup": found.ratio, "low": found.low, "high": found.high,
            "verdict": str(found.verdict),
        },
    }  # fmt: skip
    return with_promise(kept, pair["promise"])


def with_promise(pair: Pair, promise: Mapping[str, Any] | None) -> dict[str, Any]:
    """A measured pair against a prediction; one that does not apply stays as it is."""
    kept = {**pair, "promise": promise}
    measured = pair.get("measured")
    if measured is None:
        return kept
    if promise is None:
        for key in ("error", "within", "meets", "broken"):
            kept.pop(key, None)
        return kept | {"status": "not predicted"}
    speedup = measured["speedup"]
    return kept | {
        "status": "measured",
        "error": promise["speedup"] / speedup - 1,
        "within": promise["low"] <= speedup <= promise["high"],
        "meets": promise["low"] <= measured["high"] and measured["low"] <= promise["high"],
        "broken": promise["speedup"] > PROMISED and speedup < 1,
    }


def summary(pairs: Iterable[Pair]) -> dict[str, Any]:
    """Errors of some pairs taken together; only their number where none was measured."""
    known = [pair for pair in pairs if pair["status"] == "measured"]
    if not known:
        return {"pairs": 0}
    errors = [abs(pair["error"]) for pair in known]
    return {
        "pairs": len(known),
        "median": median(errors),
        "p90": percentile(errors, 0.9),
        "worst": max(errors),
        "within": sum(pair["within"] for pair in known),
        "meets": sum(pair["meets"] and not pair["within"] for pair in known),
        "unmoved": median(abs(1 / pair["measured"]["speedup"] - 1) for pair in known),
        "broken": [f"{pair['program']} × {pair['fix']}" for pair in known if pair["broken"]],
    }


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least that share of all does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def lacking(pairs: Iterable[Pair], wanted: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The program × fix pairs that were asked for and are not known yet."""
    known = {(pair["program"], pair["fix"]) for pair in pairs}
    return [one for one in wanted if one not in known]


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)
