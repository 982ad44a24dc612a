"""The device's kernels and operators as rules count them, in ms of a step."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from stepscope.analyze.timeline.roofline_ceilings import datasheet
from stepscope.analyze.whatif.changes import scale_host
from stepscope.analyze.whatif.priors import BARE_HOST
from stepscope.analyze.whatif.select import host
from stepscope.diagnose.case import Case
from stepscope.diagnose.rules._step import per_step, steps
from stepscope.record.finding import Place, Predicted
from stepscope.record.timeline import DeviceInfo

Row = Mapping[str, Any]
MATRIX = ("matmul", "convolution", "attention", "recurrent")
_USUAL = 1.7  # times longer does host time usually seem in a recording without shapes


def kernels(case: Case) -> list[Row]:
    """Kernels, copies and memsets by name, heaviest first."""
    return list((case.trace or {}).get("kernels") or [])


def category_ms(case: Case, *categories: str) -> float:
    """Device time of a step in kernels of these categories."""
    return per_step(case, sum(k["total_ns"] for k in kernels(case) if k["category"] in categories))


def count_of(case: Case, *categories: str) -> float:
    """Kernels of these categories in a step."""
    counted = sum(k["count"] for k in kernels(case) if k["category"] in categories)
    return counted / steps(case) if steps(case) else 0.0


def shapes(case: Case) -> list[Row]:
    """Operators by shape, held against the ceilings; empty where no shapes were recorded."""
    return list(((case.trace or {}).get("roofline") or {}).get("shapes") or [])


def rates(case: Case) -> Mapping[str, float]:
    """FLOP/s by dtype that the device can do; empty where not known."""
    ceilings = ((case.trace or {}).get("roofline") or {}).get("ceilings") or {}
    name = ((case.trace or {}).get("source") or {}).get("device")
    said = datasheet(DeviceInfo(0, name)) if name else None
    return ceilings.get("flops_per_s") or (said.flops_per_s if said else {})


def rows_ms(case: Case, rows: Iterable[Row]) -> float:
    """Device time of a step in some operators."""
    return per_step(case, sum(row["time_ns"] for row in rows))


def heaviest(case: Case, select: Callable[[Row], bool], most: int = 3) -> tuple[Place, ...]:
    """The heaviest kernels that are selected, as places."""
    return tuple(Place(kernel=k["name"]) for k in kernels(case) if select(k))[:most]


def operators_of(rows: Iterable[Row], most: int = 3) -> tuple[Place, ...]:
    """The operators of some rows, heaviest first, as places."""
    order = sorted(rows, key=lambda row: -row["time_ns"])
    return tuple(dict.fromkeys(Place(operator=row["name"]) for row in order))[:most]


def gain(case: Case, changes: Iterable[Any] | None, words: str, doubt: float) -> Predicted | None:
    """The step with changes; None where they gain nothing or nothing is known.

    A trace alone has stretched host time: there both replays take it as so much too long.
    """
    if changes is None or case.model is None:
        return None
    asked = tuple(changes)
    if case.show is not None:
        return case.predict(*asked, words=words, doubt=doubt)
    stretched = _stretched(case)
    shrink = scale_host(host(), 1 / stretched)
    before = case.model.replay(shrink).step_ms
    if before <= 0:
        return None
    after = case.model.replay(shrink, *asked).step_ms
    said = f"{words} (of the recorded step, host time taken as stretched {stretched:.1f} times)"
    return case.reach(case.step_ms * after / before, said, doubt, case.model.error)


def _stretched(case: Case) -> float:
    """How many times longer host time seems in a trace: more where shapes were recorded too."""
    has = ((case.trace or {}).get("source") or {}).get("has") or {}
    return 1 / BARE_HOST if has.get("shapes") else _USUAL


def in_vain(case: Case, changes: Iterable[Any] | None, predicted: Predicted | None) -> bool:
    """Whether a replay was made and gained nothing: then something else is the limit."""
    return changes is not None and case.model is not None and predicted is None


def more(one: Predicted | None, other: Predicted | None, by: float = 0.0) -> bool:
    """Whether the first gains more than the second, by so much of the speedup."""
    if one is None:
        return False
    return other is None or one.speedup > other.speedup * (1 + by)
