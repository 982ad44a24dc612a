"""The operators of a recording without a device, each with the time that is its own."""

from typing import Final, NamedTuple

import numpy as np

from stepscope.analyze.timeline.attribution import (
    BACKWARD,
    DATA_WAIT,
    FORWARD,
    OPTIMIZER,
    is_operator,
    nearest,
)
from stepscope.analyze.timeline.namematch import names_that
from stepscope.analyze.timeline.userframes import is_users_frame
from stepscope.record.timeline import NOTHING, Column, HostKind, Timeline

_NODE: Final = "autograd::engine::evaluate_function"
_LOADS: Final = "enumerate(DataLoader)"


class Events(NamedTuple):
    """Columns of one entry an event; names are indices into the timeline's, NOTHING for none."""

    begun: Column
    duration: Column
    name: Column
    operator: Column
    phase: Column
    line: Column


def host_events(timeline: Timeline) -> Events:
    """Operators in order of their starts, without the time of those they call."""
    host = timeline.host
    operators = is_operator(timeline)
    inner = nearest(host.parent, operators)
    own = host.duration.astype(np.int64).copy()
    called = np.flatnonzero(operators & (inner[host.parent] != NOTHING))
    np.subtract.at(own, inner[host.parent[called]], host.duration[called])
    frames = (host.kind == HostKind.PYTHON) & names_that(timeline, host.name, is_users_frame)
    lines = np.append(host.name, np.int32(NOTHING))[nearest(host.parent, frames)]
    chosen = np.flatnonzero(operators)
    phases = _phases(timeline)[chosen]
    # Backward and optimizers run where the loop calls them, which says nothing of whose they are.
    return Events(
        begun=host.start[chosen],
        duration=np.maximum(own[chosen], 0),
        name=host.name[chosen],
        operator=host.name[chosen],
        phase=phases,
        line=np.where(phases == FORWARD, lines[chosen], np.int32(NOTHING)),
    )


def _phases(timeline: Timeline) -> Column:
    """By what is around an operator: an optimizer, a node of backward, a loader, else forward."""
    host = timeline.host

    def below(start: str) -> Column:
        marked = names_that(timeline, host.name, lambda name: name.startswith(start))
        found: Column = nearest(host.parent, marked)[:-1] != NOTHING
        return found

    chosen: Column = np.select(
        [below("Optimizer."), below(_NODE), below(_LOADS)],
        [OPTIMIZER, BACKWARD, DATA_WAIT],
        FORWARD,
    ).astype(np.uint8)
    return chosen
