"""The results of benchmarks/replay.py as Markdown. Pure functions."""

from collections.abc import Mapping
from statistics import median
from typing import Any

GOAL = 0.03
_HEAD = (
    "| program | recorded | bare | replay | off | stated | held out | halves apart"
    " | uncalibrated | no edges | limited by |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n"
)
_METHOD = """\
*Recorded*: the window's mean step, slowed by recording. *Bare*: the mean of the same run's steps
outside it. *Replay*: the window's tasks with host time scaled, phase by phase, by the clocks'
bare over recorded time, then replayed by durations and dependencies alone; *off* is how far it lies
from bare, *stated* what the model itself says of its error. *Held out*: calibrated by every other
tenth of the bare steps and tested on the others, beside how far these *halves* lie *apart*: that
much is the machine's own unrest. *Uncalibrated* and *no edges* (no waits for the device, none for
batches) show what calibration and dependencies are worth.
"""


def table(document: Mapping[str, Any]) -> str:
    """The table, and below it how it was measured."""
    rows = "".join(_row(result) for result in document["results"])
    machine = document["machine"]
    where = [gpu["name"] for gpu in machine["gpus"]] or [machine["cpu"]["model"]]
    return (
        f"{document['device']}, {where[0]}, torch {document['versions']['torch']},"
        f" {document['date']}\n\n{_HEAD}{rows}\n{_METHOD}\n{_verdict(document['results'])}\n"
    )


def _row(result: Mapping[str, Any]) -> str:
    if "problem" in result:
        return f"| {result['program']} | {result['problem']} |\n"
    cells = [
        result["program"],
        *(f"{result[key]:.2f} ms" for key in ("recorded_ms", "bare_ms", "replay_ms")),
        _signed(result["off"]),
        f"±{result['stated_error']:.1%}",
        f"{result['held_out']['off']:.1%}",
        f"{result['held_out']['between']:.1%}",
        _signed(result["uncalibrated_off"]),
        _signed(result["without_edges_off"]),
        result["limited_by"],
    ]
    return f"| {' | '.join(cells)} |\n"


def _verdict(results: list[Mapping[str, Any]]) -> str:
    offs = sorted(abs(result["off"]) for result in results if "off" in result)
    if not offs:
        return "No program was replayed."
    held = median(r["held_out"]["off"] for r in results if "off" in r)
    middle = median(offs)
    return (
        f"Median |off| {middle:.2%} over {len(offs)} programs, largest {offs[-1]:.2%};"
        f" held out {held:.2%}. Goal ≤ {GOAL:.0%}: {'met' if middle <= GOAL else 'missed'}."
    )


def _signed(share: float) -> str:
    return f"{share:+.1%}".replace("-", "−")
