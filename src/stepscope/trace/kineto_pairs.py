"""Spans that were written in two halves, put together."""

import numpy as np

from stepscope.record.timeline import NOTHING, HostEvents, Quality, column_types
from stepscope.trace.kineto_chunk import Columns, Half
from stepscope.trace.kineto_kinds import DEVICE


def paired(halves: list[Half], quality: Quality) -> Columns:
    """Columns of host events: each end belongs to the last open beginning on its thread."""
    open_: dict[int, list[Half]] = {}
    rows: list[tuple[int, int, int, int, int]] = []
    alone = others = 0
    for half in sorted(halves, key=lambda half: half[1]):
        thread, time, kind, name = half
        stack = open_.setdefault(thread, [])
        if kind != NOTHING:
            stack.append(half)
        elif stack:
            _, begin, kind, name = stack.pop()
            if kind < DEVICE:
                rows.append((kind, name, begin, time - begin, thread))
            else:
                others += 2
        else:
            alone += 1
    alone += sum(map(len, open_.values()))
    if rows:
        quality.ignored["second halves of begin and end"] = len(rows)
    if others:
        quality.ignored["begin and end of other categories"] = others
    if alone:
        quality.dropped["begin without end, or end without begin"] = alone
    names = ("kind", "name", "start", "duration", "thread")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    dtypes = column_types(HostEvents)
    return {n: np.array(c, dtypes[n]) for n, c in zip(names, columns, strict=True)}
