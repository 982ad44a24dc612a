"""Steady step times, process by process, from where each kind of result keeps them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.store.folder import read_run

Series = tuple[float, ...]
"""Of one process: ms."""


def run_series(folder: Path) -> Series:
    """The steady steps of a run outside its window; none where there are too few to tell."""
    from stepscope.tune.reading import scouted

    run = read_run(folder)["run"]
    speed, _ = scouted(folder, float(run.get("started_ns") or 0))
    return speed.step_ms


def trace_series(document: Mapping[str, Any]) -> Series:
    """The recorded steps of a trace or window."""
    return tuple((one["end_ns"] - one["start_ns"]) / 1e6 for one in document["steps"]["each"])


def point_series(records: Sequence[Mapping[str, Any]], key: str) -> tuple[Series, ...]:
    """Of one point of a bench: its calls in a row, or those timed alone, by process."""
    fine = [one["measured"] for one in records if one["key"] == key and one["status"] == "ok"]
    rows = (one.get("throughput_ms") or one["series_ms"] for one in fine)
    return tuple(tuple(row) for row in rows if row)
