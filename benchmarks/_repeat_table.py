"""The results of benchmarks/bench_repeat.py as Markdown. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from _repeat_splits import INDEPENDENT, SIDES, claims

_GOAL = 0.05
_METHOD = f"""\
Every process measures the same; points take turns. *Spread*: the slowest process over the fastest.
*Deviation*: the standard deviation between processes. *Noise floor*: what two processes of one
point stay within, 19 times of 20. *Faster or slower*: claimed of two groups of those processes,
which are all alike; goal: at most 1 of 20. Splits of a point share processes, so they depend on
each other; *independent* pairs, {INDEPENDENT} against {INDEPENDENT}, have processes of their own.
"""


def table(document: Mapping[str, Any]) -> str:
    """One row per point, then the verdicts."""
    parts = [_place(document), "".join(_points(document)), "".join(_claims(document)), _METHOD]
    return "\n".join(parts)


def _points(document: Mapping[str, Any]) -> Iterator[str]:
    yield "| point | processes | step ms | spread | deviation | noise floor | unstable |\n"
    yield "|---|--:|--:|--:|--:|--:|---|\n"
    for point in document["points"]:
        name, count = point["name"], len(point["mean_ms"])
        if "spread" not in point:
            yield f"| {name} | {count} | – | – | – | – | {'; '.join(point['failed'])} |\n"
            continue
        shares = (f"{point[key]:.1%}" for key in ("spread", "deviation", "noise_floor"))
        why = "; ".join(filter(None, [point["unstable"], *point["failed"]]))
        yield f"| {name} | {count} | {point['value_ms']:.3f} | {' | '.join(shares)} | {why} |\n"


def _claims(document: Mapping[str, Any]) -> Iterator[str]:
    points = [point["verdicts"] for point in document["points"] if "verdicts" in point]
    yield "| groups | compared | faster or slower | same | unclear | goal |\n"
    yield "|---|--:|--:|--:|--:|---|\n"
    for side in SIDES:
        counts = _added(point["splits"].get(str(side), {}) for point in points)
        yield from _row(f"{side} against {side}, all splits", counts)
    alone = _added(point["independent"] for point in points)
    yield from _row(f"{INDEPENDENT} against {INDEPENDENT}, independent", alone)


def _row(name: str, counts: dict[str, int]) -> Iterator[str]:
    total = sum(counts.values())
    if total:
        same, unclear = counts.get("SAME", 0), counts.get("UNCLEAR", 0)
        goal = "met" if claims(counts) <= _GOAL * total else "missed"
        yield f"| {name} | {total} | {claims(counts)} | {same} | {unclear} | {goal} |\n"


def _added(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for counts in several:
        for verdict, count in counts.items():
            found[verdict] = found.get(verdict, 0) + count
    return found


def _place(document: Mapping[str, Any]) -> str:
    machine, versions = document["machine"], document["versions"]
    gpus = [gpu["name"] for gpu in machine["gpus"]] if document["device"] == "cuda" else []
    where = ", ".join([*gpus, machine["cpu"]["model"] or "an unknown CPU"])
    return (
        f"{where}; Python {versions['python']}, torch {versions['torch']}, stepscope "
        f"{versions['stepscope']} at {versions['commit'] or 'an unknown commit'}; "
        f"{document['date']}; `{document['command']}`\n"
    )
