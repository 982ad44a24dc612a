"""Copies of batches to the device."""

import re
from collections.abc import Mapping
from typing import Any

from stepscope.diagnose.case import Case
from stepscope.diagnose.rules._run import steps
from stepscope.diagnose.rules._source import same_each_time
from stepscope.diagnose.rules._text import line_of
from stepscope.diagnose.rules._waits import Wait, synced
from stepscope.record.finding import Place

_RARE = 0.5  # times a step: what is copied less often belongs to epochs or evaluation


def uploads(case: Case) -> list[Wait]:
    """Lines of the loop that copy from pageable memory in most steps, costliest first."""
    if case.device != "cuda":
        return []
    return [w for w in synced(case) if w.what == "pageable copy" and (w.count or 0.0) >= _RARE]


def repeated(case: Case) -> list[tuple[Wait, str]]:
    """Those that copy what no step changes, with the expression copied."""
    found = [(wait, same_each_time(case, wait.place)) for wait in (*uploads(case), *pinned(case))]
    return [(wait, name) for wait, name in found if name is not None]


def of_batches(case: Case) -> list[Wait]:
    """Pageable copies of what is new in each step."""
    again = {wait for wait, _ in repeated(case)}
    return [wait for wait in uploads(case) if wait not in again]


def pinned(case: Case) -> list[Wait]:
    """Lines that copy from pinned memory, and the time the host spends there."""
    count = steps(case)
    if case.device != "cuda" or not count:
        return []
    return [
        Wait("h2d", one["total_ms"] / count, one["count"] / count, line_of(one))
        for one in (case.show or {}).get("sites") or ()
        if one["what"] == "h2d" and one["count"] >= _RARE * count
    ]


def recorded(case: Case, direction: str) -> list[Mapping[str, Any]]:
    """The window's copies of one direction, by memory."""
    found = (case.trace or {}).get("copies") or []
    return [one for one in found if one["direction"] == direction]


def does_not_block(case: Case, place: Place) -> bool:
    """Whether the line already asks not to wait."""
    line = case.source(place.file, place.line) if place.file and place.line else None
    return line is not None and re.search(r"non_blocking\s*=\s*True", line) is not None
