"""Columns from decoded events, block by block; of an event only its numbers are kept."""

from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from stepscope.record.timeline import (
    NOTHING,
    Column,
    DeviceEvents,
    HostEvents,
    HostKind,
    MemoryEvents,
    SyncEvents,
    column_types,
)
from stepscope.trace.format import Drop, Repair
from stepscope.trace.kineto.chunks import BETWEEN_TEXTS, Chunk, Columns, Tables
from stepscope.trace.kineto.events import (
    ABSENT,
    FIRST_DEVICE_CODE,
    IGNORED_CODE,
    IGNORED_REASONS,
    SYNC_CODE,
    UNUSABLE,
    Args,
    Begin,
    CategoryCodes,
    End,
    Instant,
    Label,
    Span,
    nanoseconds,
    nanoseconds_from_float,
)
from stepscope.trace.limits import LARGEST_SIZE

_INT64 = np.iinfo(np.int64)
_COLLECTIVE = attrgetter(
    "collective", "dtype", "in_elements", "out_elements", "group_size", "group"
)
_NO_STREAM = (None, -1, 2**32 - 1, "-1")


MOST_REASONS = 40  # that ignored events are counted under; the others together


class ColumnBuilder:
    """Takes events as they are decoded and gives their columns, a Chunk at a time."""

    def __init__(self) -> None:
        self._codes = CategoryCodes()
        self._tables = Tables()
        self.chunk = Chunk()

    def flush(self) -> Chunk:
        """Everything since the last flush."""
        chunk, self.chunk = self.chunk, Chunk()
        chunk.new = self._tables.take_new()
        return chunk

    def add(self, events: list[Any]) -> None:
        """Add events in their order in the file; InexactError leaves everything as it was."""
        kinds = Counter(map(type, events))
        spans = [event for event in events if type(event) is Span]
        instants = [e for e in events if type(e) is Instant] if kinds[Instant] else []
        moves = [instant for instant in instants if instant.args.bytes is not None]
        halves = [e for e in events if type(e) in (Begin, End)] if kinds[Begin] + kinds[End] else []
        starts, moments, times = (
            nanoseconds([event.ts for event in some]) for some in (spans, moves, halves)
        )
        self.chunk.read += kinds.total()
        for kind, count in kinds.items():
            if kind in IGNORED_REASONS:
                self.chunk.ignored[IGNORED_REASONS[kind]] += count
        if marks := len(instants) - len(moves):
            self.chunk.ignored["marks"] += marks
        self._labels(events if kinds[Label] else [])
        self._spans(spans, starts)
        self._memory(moves, moments)
        self._halves(halves, times)

    def _labels(self, events: list[Any]) -> None:
        for event in events:
            if type(event) is Label and event.name == "thread_name" and event.args.name is not None:
                self.chunk.labels[str(event.pid), str(event.tid)] = str(event.args.name)

    def _spans(self, spans: list[Any], start: Column) -> None:
        codes = self._codes
        code = np.array([codes[span.cat] for span in spans], np.uint8)
        duration = self._durations(spans, code)
        unusable = (start == UNUSABLE) & (code != IGNORED_CODE)
        if unusable.any():
            self.chunk.dropped[Drop.NO_TIME] += int(unusable.sum())
            code[unusable] = IGNORED_CODE + 1
        for low, high, add in (
            (0, FIRST_DEVICE_CODE, self._host),
            (FIRST_DEVICE_CODE, SYNC_CODE, self._device),
            (SYNC_CODE, IGNORED_CODE, self._sync),
        ):
            where = np.flatnonzero((code >= low) & (code < high))
            if len(where):
                some = [spans[n] for n in where.tolist()] if len(where) < len(spans) else spans
                columns = {
                    "kind": code[where] - low,
                    "name": _numbered(self._tables.names, [span.name for span in some]),
                    "start": start[where],
                    "duration": duration[where],
                }
                add(some, columns)
        ignored = self.chunk.ignored
        for n in np.flatnonzero(code == IGNORED_CODE).tolist():
            shown = "".join(c if c.isprintable() else "?" for c in spans[n].cat[:80])
            reason = f"of category {shown}" if shown else "without a category"
            ignored[reason if reason in ignored or len(ignored) < MOST_REASONS else "others"] += 1

    def _durations(self, spans: list[Any], code: Column) -> Column:
        """Nanoseconds; a missing or negative duration becomes zero and is counted."""
        numbers = np.array([span.dur for span in spans], np.float64)
        result = nanoseconds_from_float(numbers)
        bad = result < 0
        if bad.any():
            missing = np.isnan(numbers)
            for reason, which in (
                (Repair.NO_DURATION, bad & missing),
                (Repair.BAD_DURATION, bad & ~missing),
            ):
                if count := int((which & (code != IGNORED_CODE)).sum()):
                    self.chunk.repaired[reason] += count
            result[bad] = 0
        return result

    def _host(self, spans: list[Any], columns: Columns) -> None:
        kind = columns["kind"]
        columns["thread"] = self._threads(spans)

        def set_rows(where: Column, **values: Column) -> None:
            """Put the values of some events into columns that are NOTHING elsewhere."""
            for name, column in values.items():
                if name not in columns:
                    columns[name] = np.full(len(kind), NOTHING, column_types(HostEvents)[name])
                columns[name][where] = column

        calls = np.flatnonzero(kind == HostKind.RUNTIME)
        if len(calls):
            args = [spans[n].args for n in calls.tolist()]
            correlation = self._ints([each.correlation for each in args])
            set_rows(calls, correlation=correlation, external=self._externals(args))
        operators = np.flatnonzero(kind <= HostKind.ANNOTATION)
        if len(operators):
            args = [spans[n].args for n in operators.tolist()]
            set_rows(
                operators,
                external=self._externals(args),
                sequence=self._ints([each.sequence for each in args]),
                shapes=self._shapes(args),
                collective=self._collectives(args),
            )
        self.chunk.add(HostEvents, columns)

    def _device(self, spans: list[Any], columns: Columns) -> None:
        args = [span.args for span in spans]
        streams = zip(
            [each.device for each in args],
            [each.stream for each in args],
            [span.pid for span in spans],
            [span.tid for span in spans],
            strict=True,
        )
        graph = self._ints([each.node if each.graph <= 0 else each.graph for each in args])
        columns |= {
            "stream": np.fromiter(map(self._tables.streams.__getitem__, streams), np.int32),
            "correlation": self._ints([each.correlation for each in args]),
            "external": self._externals(args),
            "bytes": self._counts([each.bytes for each in args]),
            "geometry": self._geometries(args),
            "collective": self._collectives(args),
            "graph": np.where(graph > 0, graph, NOTHING),  # zero stands for no graph
        }
        self.chunk.add(DeviceEvents, columns)

    def _sync(self, spans: list[Any], columns: Columns) -> None:
        del columns["kind"]
        args = [span.args for span in spans]
        columns |= {
            "stream": self._optional_streams(spans, [each.stream for each in args]),
            "correlation": self._ints([each.correlation for each in args]),
            "waits_for": self._optional_streams(spans, [each.waits_for for each in args]),
        }
        self.chunk.add(SyncEvents, columns)

    def _memory(self, moves: list[Any], time: Column) -> None:
        usable = np.flatnonzero(time != UNUSABLE)
        if len(usable) < len(moves):
            self.chunk.dropped[Drop.NO_TIME] += len(moves) - len(usable)
            moves, time = [moves[n] for n in usable.tolist()], time[usable]
        if not moves:
            return
        args = [move.args for move in moves]
        device = self._ints([each.device if each.device_type else NOTHING for each in args])
        addresses = [each.address for each in args]
        try:
            address = np.array(addresses, np.int64)
        except OverflowError:  # only their identity matters, so those past 2**63 may turn negative
            address = np.array([value % 2**64 for value in addresses], np.uint64).view(np.int64)
        columns: Columns = {
            "time": time,
            "device": np.where(np.abs(device) < 2**15, device, NOTHING).astype(np.int16),
            "address": address,
            "bytes": self._counts([each.bytes for each in args]),
            "allocated": self._counts([each.allocated for each in args]),
            "reserved": self._counts([each.reserved for each in args]),
            "thread": self._threads(moves),
        }
        self.chunk.add(MemoryEvents, columns)

    def _halves(self, halves: list[Any], times: Column) -> None:
        for half, time in zip(halves, times.tolist(), strict=True):
            if time == UNUSABLE:
                self.chunk.dropped[Drop.NO_TIME] += 1
                continue
            code = NOTHING if type(half) is End else self._codes[half.cat]
            name = self._tables.names[half.name] if 0 <= code < FIRST_DEVICE_CODE else NOTHING
            thread = self._tables.threads[half.pid, half.tid]
            self.chunk.halves.append((thread, time, code, name))

    def _threads(self, events: list[Any]) -> Column:
        pairs = zip([e.pid for e in events], [e.tid for e in events], strict=True)
        return np.fromiter(map(self._tables.threads.__getitem__, pairs), np.int32, len(events))

    def _optional_streams(self, spans: list[Any], streams: list[Any]) -> Column:
        """NOTHING for what concerns no stream, or all of them."""
        numbers = self._tables.streams
        found = [
            NOTHING if stream in _NO_STREAM else numbers[s.args.device, stream, s.pid, s.tid]
            for s, stream in zip(spans, streams, strict=True)
        ]
        return np.array(found, np.int32)

    def _externals(self, args: list[Args]) -> Column:
        external = self._ints([each.external for each in args])
        missing = np.flatnonzero(external == NOTHING)
        if len(missing):
            external[missing] = self._ints([args[n].external_old for n in missing.tolist()])
        return external

    def _shapes(self, args: list[Args]) -> Column:
        dims = [each.dims for each in args]
        if ABSENT in dims:
            dims = [each.dims_old if each.dims is ABSENT else each.dims for each in args]
            if dims.count(ABSENT) == len(dims):
                return np.full(len(args), NOTHING, np.int32)
        numbers = self._tables.shapes
        found = [
            NOTHING
            if some is ABSENT
            else numbers[BETWEEN_TEXTS.join((some, each.types, each.strides, each.values))]
            for some, each in zip(dims, args, strict=True)
        ]
        return np.array(found, np.int32)

    def _geometries(self, args: list[Args]) -> Column:
        numbers = self._tables.geometries
        found = [
            NOTHING
            if each.grid is ABSENT
            else numbers[
                BETWEEN_TEXTS.join((each.grid, each.block)),
                each.registers,
                each.shared,
                each.blocks_per_sm,
                each.warps_per_sm,
                each.occupancy,
            ]
            for each in args
        ]
        return np.array(found, np.int32)

    def _collectives(self, args: list[Args]) -> Column:
        result = np.full(len(args), NOTHING, np.int32)
        names = [each.collective for each in args]
        if names.count(None) < len(names):
            for n, each in enumerate(args):
                if each.collective is not None:
                    result[n] = self._tables.collectives[*_COLLECTIVE(each), bytes(each.ranks)]
        return result

    def _counts(self, values: list[Any]) -> Column:
        """Sizes, which some writers put in quotes; absurd ones become NOTHING and are counted."""
        if str in set(map(type, values)):
            texts = sum(type(value) is str for value in values)
            self.chunk.repaired[Repair.NUMBER_AS_TEXT] += texts
            values = [_number(value) for value in values]
        sizes = self._ints(values)
        absurd = (sizes <= -LARGEST_SIZE) | (sizes >= LARGEST_SIZE)
        if absurd.any():
            self.chunk.repaired[Repair.ABSURD_SIZE] += int(absurd.sum())
            sizes[absurd] = NOTHING
        return sizes

    def _ints(self, values: list[int]) -> Column:
        """As int64; a number beyond 64 bits becomes NOTHING and is counted."""
        try:
            return np.array(values, np.int64)
        except OverflowError:
            fits = [int(_INT64.min) <= value <= int(_INT64.max) for value in values]
            self.chunk.repaired[Repair.NUMBER_TOO_LARGE] += fits.count(False)
            kept = [v if fit else NOTHING for v, fit in zip(values, fits, strict=True)]
            return np.array(kept, np.int64)


def _numbered(table: dict[Any, int], keys: Sequence[Any]) -> Column:
    return np.fromiter(map(table.__getitem__, keys), np.int32, len(keys))


def _number(value: Any) -> int:
    if type(value) is int:
        return value
    text = str(value).strip()
    return int(text) if len(text) < 20 and text.lstrip("-").isdecimal() else NOTHING
