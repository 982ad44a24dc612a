"""Where the host waits for the device, by what the user does there."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.diagnose.case import Case
from stepscope.diagnose.rules._run import steps
from stepscope.diagnose.rules._step import per_step, place_of
from stepscope.diagnose.rules._text import line_of
from stepscope.record.finding import Place

GROUPS: Mapping[str, tuple[str, ...]] = {
    "item": ("item", "bool", "float", "int", "index"),
    "cpu": ("cpu", "numpy", "tolist", "to('cpu')"),
    "nonzero": ("nonzero", "masked_select", "unique"),
    "synchronize": ("synchronize", "Event.synchronize", "Stream.synchronize"),
}
_OPERATORS = (
    ("item", re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal)$")),
    ("nonzero", re.compile(r"^aten::(nonzero|masked_select|_?unique\w*|index|index_put_)$")),
    ("cpu", re.compile(r"^aten::(copy_|_to_copy|to)$")),
)
_PRINTS = re.compile(
    r"\bprint\(|\blog(ger|ging)?\.|\bwandb\.|add_scalar|set_postfix|set_description|\.format\(|\bf['\"]"
)
_CHATTER = 4.0  # tensors brought back in one step
_RARE = 0.1  # a step: at a wait that comes less often the host only lets the device catch up


@dataclass(frozen=True, slots=True)
class Wait:
    """A line (of a trace: an operator) at which the host waits."""

    what: str
    """As `show["syncs"]` has it."""
    ms: float
    """A step; what is lost there now, which other waits may absorb."""
    count: float | None
    """A step; None for a trace alone."""
    place: Place


def waits(case: Case) -> list[Wait]:
    """All of them but copies to the device, costliest first; empty on the CPU."""
    if case.device != "cuda":
        return []
    found = [wait for wait in synced(case) if "copy" not in wait.what and _is_often(wait)]
    recorded = _recorded(case)
    if case.show is not None:  # masks wait inside an operator, where only a recording sees it
        shaped = any(wait.what in GROUPS["nonzero"] for wait in found)
        recorded = [] if shaped else [wait for wait in recorded if wait.what == "nonzero"]
    return sorted([*found, *recorded], key=lambda wait: -wait.ms)


def synced(case: Case) -> list[Wait]:
    """What the run counted."""
    count = steps(case)
    return [
        Wait(one["what"], one["lost_ms"] / count, one["count"] / count, line_of(one))
        for one in (case.show or {}).get("syncs") or ()
        if count
    ]


def grouped(case: Case) -> dict[str, list[Wait]]:
    """Waits by what the user does there: item, cpu, nonzero, synchronize, print, chatter."""
    found: dict[str, list[Wait]] = {}
    for wait in waits(case):
        kind = next((name for name, words in GROUPS.items() if wait.what in words), None)
        if kind is not None:
            shown = kind in ("item", "cpu", "nonzero") and _PRINTS.search(_source(case, wait.place))
            found.setdefault("print" if shown else kind, []).append(wait)
    if sum(wait.count or 0.0 for wait in found.get("cpu", ())) >= _CHATTER:
        found["chatter"] = found.pop("cpu")
    return found


def _recorded(case: Case) -> list[Wait]:
    """What idle time of the device the window gives to synchronisations."""
    devices = (case.trace or {}).get("devices") or []
    found = [
        _judged(case, one)
        for device in devices[:1]
        for one in ((device.get("idle") or {}).get("synchronisation") or {}).get("places") or ()
    ]
    return [wait for wait in found if wait.ms > 0]


def _judged(case: Case, one: Mapping[str, Any]) -> Wait:
    operator = one.get("operator") or ""
    what = next((name for name, pattern in _OPERATORS if pattern.search(operator)), "synchronize")
    frame = place_of(one.get("where"))
    place = (
        Place(frame.file, frame.line, one.get("operator")) if frame else Place(operator=operator)
    )
    return Wait(what, per_step(case, one.get("total_ns")), None, place)


def _is_often(wait: Wait) -> bool:
    return wait.count is None or wait.count >= _RARE


def _source(case: Case, place: Place) -> str:
    return (case.source(place.file, place.line) or "") if place.file and place.line else ""
