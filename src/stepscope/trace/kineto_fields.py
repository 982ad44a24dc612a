"""Single columns from the arguments of many events."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.record.timeline import NOTHING, Column
from stepscope.trace.kineto_chunk import Tables
from stepscope.trace.kineto_events import ABSENT, Args

_INT64 = np.iinfo(np.int64)
_NO_STREAM = (None, -1, 2**32 - 1, "-1")


class Fields:
    """Turns lists of events into columns; interns into `tables`, counts what it mends."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.repaired: Counter[str] = Counter()

    def names(self, events: list[Any]) -> Column:
        return _numbered(self._tables.names, [event.name for event in events])

    def threads(self, events: list[Any]) -> Column:
        pairs = zip([e.pid for e in events], [e.tid for e in events], strict=True)
        return np.fromiter(map(self._tables.threads.__getitem__, pairs), np.int32, len(events))

    def streams(self, spans: list[Any]) -> Column:
        keys = [(s.args.device, s.args.stream, s.pid, s.tid) for s in spans]
        return _numbered(self._tables.streams, keys)

    def optional_streams(self, spans: list[Any], streams: list[Any]) -> Column:
        """NOTHING for what concerns no stream, or all of them."""
        numbers = self._tables.streams
        found = [
            NOTHING if stream in _NO_STREAM else numbers[s.args.device, stream, s.pid, s.tid]
            for s, stream in zip(spans, streams, strict=True)
        ]
        return np.array(found, np.int32)

    def correlations(self, args: list[Args]) -> Column:
        return self.ints([each.correlation for each in args])

    def externals(self, args: list[Args]) -> Column:
        external = self.ints([each.external for each in args])
        if (external == NOTHING).any():
            old = self.ints([each.external_old for each in args])
            external = np.where(external == NOTHING, old, external)
        return external

    def graphs(self, args: list[Args]) -> Column:
        """Zero stands for no graph."""
        graph = self.ints([each.node if each.graph <= 0 else each.graph for each in args])
        return np.where(graph > 0, graph, NOTHING)

    def shapes(self, args: list[Args]) -> Column:
        numbers = self._tables.shapes
        found = [
            NOTHING
            if (dims := each.dims if each.dims is not ABSENT else each.dims_old) is ABSENT
            else numbers[bytes(dims), bytes(each.types), bytes(each.strides), bytes(each.values)]
            for each in args
        ]
        return np.array(found, np.int32)

    def geometries(self, args: list[Args]) -> Column:
        numbers = self._tables.geometries
        found = [
            NOTHING
            if each.grid is ABSENT
            else numbers[
                bytes(each.grid),
                bytes(each.block),
                each.registers,
                each.shared,
                each.blocks_per_sm,
                each.warps_per_sm,
                each.occupancy,
            ]
            for each in args
        ]
        return np.array(found, np.int32)

    def collectives(self, args: list[Args]) -> Column:
        result = np.full(len(args), NOTHING, np.int32)
        for n in [n for n, each in enumerate(args) if each.collective is not None]:
            each = args[n]
            result[n] = self._tables.collectives[
                each.collective,
                each.dtype,
                each.in_elements,
                each.out_elements,
                each.group_size,
                each.group,
                bytes(each.ranks),
            ]
        return result

    def counts(self, values: list[Any]) -> Column:
        """Numbers that some writers put in quotes."""
        if str in set(map(type, values)):
            texts = sum(type(value) is str for value in values)
            self.repaired["number written as text"] += texts
            values = [_number(value) for value in values]
        return self.ints(values)

    def ints(self, values: list[int]) -> Column:
        """As int64; a number beyond 64 bits becomes NOTHING and is counted."""
        try:
            return np.array(values, np.int64)
        except OverflowError:
            fits = [int(_INT64.min) <= value <= int(_INT64.max) for value in values]
            self.repaired["number beyond 64 bits left out"] += fits.count(False)
            kept = [v if fit else NOTHING for v, fit in zip(values, fits, strict=True)]
            return np.array(kept, np.int64)


def addresses(values: list[int]) -> Column:
    """Only their identity matters, so those past 2**63 may turn negative."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([value % 2**64 for value in values], np.uint64).view(np.int64)


def _numbered(table: dict[Any, int], keys: Sequence[Any]) -> Column:
    return np.fromiter(map(table.__getitem__, keys), np.int32, len(keys))


def _number(value: Any) -> int:
    if type(value) is int:
        return value
    text = str(value).strip()
    return int(text) if len(text) < 20 and text.lstrip("-").isdecimal() else NOTHING
