"""The operators that loops of the program's own call, without the loader's and the optimizer's."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from stepscope.diagnose.case import Case
from stepscope.diagnose.rules._step import operators
from stepscope.record.rows import STEP_PHASES

LOOPS: Final = ("h2d", "forward", "backward", "other")
"""Phases: a loader and an optimizer that go through things one by one have rules of their own."""


def own_operators(case: Case) -> list[Mapping[str, Any]]:
    """The host's operators with most time of their own, as far as they are in these phases.

    Without a window to tell phases by, all of each.
    """
    shares = _shares(case)
    found: list[Mapping[str, Any]] = []
    for one in operators(case):
        share = shares.get(one["name"], 1.0)
        if share > 0:
            found.append({**one, "count": share * one["count"], "self_ns": share * one["self_ns"]})
    return found


def _shares(case: Case) -> dict[str, float]:
    """By operator, how much of what the host does for it is in these phases."""
    tasks = getattr(case.model, "tasks", None)
    if tasks is None:
        return {}
    chain, size = tasks.host, len(tasks.names)
    known = chain.operator >= 0
    ours = known & np.isin(chain.phase, [STEP_PHASES.index(phase) for phase in LOOPS])
    whole = np.bincount(chain.operator[known], minlength=size)
    inside = np.bincount(chain.operator[ours], minlength=size)
    return {tasks.names[n]: float(inside[n] / whole[n]) for n in np.flatnonzero(whole).tolist()}
