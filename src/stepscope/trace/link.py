"""Joins events: device work to the call that launched it, host events to the one around them."""

import re

import numpy as np

from stepscope.record.timeline import NOTHING, Column, HostKind, distinct_values

_ASKS = re.compile(
    r"^(cuda|cu|hip)\w*(IsCapturing|GetCaptureInfo|Query|GetPriority|GetAttribute|SetAttribute|"
    r"GetLastError|PeekAtLastError|GetErrorString|GetErrorName|ElapsedTime|Synchronize|"
    r"MaxActiveBlocks|GetDevice|SetDevice|GetFuncBySymbol|EventCreate|EventDestroy|EventRecord)"
)
_RUN = 1 << 16  # events whose numbers are Python objects at one time


def launches_nothing(names: list[str]) -> Column:
    """For each name of a runtime call, whether it only asks, waits or records."""
    return np.fromiter((bool(_ASKS.match(name)) for name in names), bool, len(names))


def link_launches(
    kind: Column,
    name: Column,
    start: Column,
    correlation: Column,
    names: list[str],
    device_start: Column,
    device_correlation: Column,
) -> Column:
    """For each piece of device work the row of its launch, NOTHING where none was recorded.

    Of several calls with its correlation: the last that begins before it, or the first of all. Host
    rows are in order of start.
    """
    rows = np.flatnonzero((kind == HostKind.RUNTIME) & (correlation >= 0))
    rows = rows[~launches_nothing(names)[name[rows]]]
    rows = rows[np.argsort(correlation[rows], kind="stable")]
    known = correlation[rows]
    first = np.searchsorted(known, device_correlation, "left")
    low, high = first, np.searchsorted(known, device_correlation, "right")
    linked = high > first
    starts = start[rows]
    while (open_ := low < high).any():
        middle = (low + high) // 2
        before = np.zeros(len(middle), bool)
        before[open_] = starts[middle[open_]] <= device_start[open_]
        low = np.where(open_ & before, middle + 1, low)
        high = np.where(open_ & ~before, middle, high)
    launch = np.full(len(device_start), NOTHING, np.int32)
    launch[linked] = rows[np.maximum(low - 1, first)[linked]]
    return launch


_ROUNDS = 64  # more than programs nest


def link_parents(thread: Column, start: Column, duration: Column) -> Column:
    """For each host event the row of the shortest one around it on its thread, or NOTHING.

    Rows are in order of start, the longer of two that start together first. A moment at the very
    end of a span is not inside it.
    """
    parent = np.full(len(start), NOTHING, np.int32)
    order = np.argsort(thread, kind="stable")
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    ends = (start + duration)[order]
    needs = ends + (duration[order] <= 0)
    # The nearest row before that ends late enough: of one that does not, whatever it skipped itself
    # does not either, so all rows can skip at once, twice as far each time.
    above = np.arange(-1, len(order) - 1, dtype=np.int32)
    above[edges] = NOTHING
    open_ = np.flatnonzero(above >= 0)
    for _ in range(_ROUNDS):
        open_ = open_[ends[above[open_]] < needs[open_]]
        above[open_] = above[above[open_]]
        open_ = open_[above[open_] >= 0]
        if not len(open_):
            break
    parent[order] = np.append(order, NOTHING)[above]
    deep = distinct_values(thread[order[open_]]) if len(open_) else ()
    for rows in np.split(order, edges) if len(deep) else ():
        if thread[rows[0]] in deep:
            parent[rows] = _parents_on_a_stack(rows, start, duration)
    return parent


def _parents_on_a_stack(rows: Column, start: Column, duration: Column) -> Column:
    """Of one thread's rows, in time linear in their number however deep they nest."""
    found = np.empty(len(rows), np.int32)
    stack_rows: list[int] = []
    stack_ends: list[int] = []
    for at in range(0, len(rows), _RUN):
        some = rows[at : at + _RUN]
        ends = start[some] + duration[some]
        needs = np.where(duration[some] > 0, ends, ends + 1)
        for n, (row, end, need) in enumerate(
            zip(some.tolist(), ends.tolist(), needs.tolist(), strict=True), at
        ):
            while stack_ends and stack_ends[-1] < need:
                stack_ends.pop()
                stack_rows.pop()
            found[n] = stack_rows[-1] if stack_rows else NOTHING
            stack_rows.append(row)
            stack_ends.append(end)
    return found
