"""Columns from decoded events, block by block: nothing is kept of an event but its numbers."""

from collections import Counter
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
from stepscope.trace.kineto_chunk import Chunk, Columns, Tables
from stepscope.trace.kineto_events import REASONS, Begin, End, Instant, Label, Span
from stepscope.trace.kineto_fields import Fields, addresses
from stepscope.trace.kineto_kinds import DEVICE, IGNORED, SYNC, Codes
from stepscope.trace.kineto_times import UNUSABLE, from_float, nanoseconds

MOST_REASONS = 40  # that ignored events are counted under; the others together


class Builder:
    """Takes events as they are decoded and gives their columns, a Chunk at a time."""

    def __init__(self) -> None:
        self._codes = Codes()
        self._tables = Tables()
        self._fields = Fields(self._tables)
        self.chunk = Chunk()

    def flush(self) -> Chunk:
        """Everything since the last flush."""
        chunk, self.chunk = self.chunk, Chunk()
        chunk.new = self._tables.take_new()
        chunk.repaired += self._fields.repaired
        self._fields.repaired.clear()
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
        self._count(kinds, len(instants) - len(moves))
        self._labels(events if kinds[Label] else [])
        self._spans(spans, starts)
        self._memory(moves, moments)
        self._halves(halves, times)

    def _count(self, kinds: Counter[type], marks: int) -> None:
        self.chunk.read += kinds.total()
        for kind, count in kinds.items():
            if kind in REASONS:
                self.chunk.ignored[REASONS[kind]] += count
        if marks:
            self.chunk.ignored["marks"] += marks

    def _labels(self, events: list[Any]) -> None:
        for event in events:
            if type(event) is Label and event.name == "thread_name" and event.args.name is not None:
                self.chunk.labels[str(event.pid), str(event.tid)] = str(event.args.name)

    def _spans(self, spans: list[Any], start: Column) -> None:
        codes = self._codes
        code = np.array([codes[span.cat] for span in spans], np.uint8)
        duration = self._durations(spans, code)
        unusable = (start == UNUSABLE) & (code != IGNORED)
        if unusable.any():
            self.chunk.dropped["without a usable time"] += int(unusable.sum())
            code[unusable] = IGNORED + 1
        for low, high, add in (
            (0, DEVICE, self._host),
            (DEVICE, SYNC, self._device),
            (SYNC, IGNORED, self._sync),
        ):
            where = np.flatnonzero((code >= low) & (code < high))
            if len(where):
                some = [spans[n] for n in where.tolist()] if len(where) < len(spans) else spans
                add(some, code[where] - low, start[where], duration[where])
        for n in np.flatnonzero(code == IGNORED).tolist():
            self._ignore(spans[n].cat)

    def _ignore(self, category: str) -> None:
        ignored = self.chunk.ignored
        shown = "".join(letter if letter.isprintable() else "?" for letter in category[:80])
        reason = f"of category {shown}" if shown else "without a category"
        ignored[reason if reason in ignored or len(ignored) < MOST_REASONS else "others"] += 1

    def _durations(self, spans: list[Any], code: Column) -> Column:
        """Nanoseconds; a missing or negative duration becomes zero and is counted."""
        numbers = np.array([span.dur for span in spans], np.float64)
        result = from_float(numbers)
        bad = result < 0
        if bad.any():
            missing = np.isnan(numbers)
            for reason, which in (
                ("missing duration taken as zero", bad & missing),
                ("negative or absurd duration taken as zero", bad & ~missing),
            ):
                if count := int((which & (code != IGNORED)).sum()):
                    self.chunk.repaired[reason] += count
            result[bad] = 0
        return result

    def _host(self, spans: list[Any], kind: Column, start: Column, duration: Column) -> None:
        fields = self._fields
        columns: Columns = {
            "kind": kind,
            "name": fields.names(spans),
            "start": start,
            "duration": duration,
            "thread": fields.threads(spans),
        }
        calls = np.flatnonzero(kind == HostKind.RUNTIME)
        if len(calls):
            args = [spans[n].args for n in calls.tolist()]
            _place(columns, "correlation", calls, fields.correlations(args))
            _place(columns, "external", calls, fields.externals(args))
        operators = np.flatnonzero(kind <= HostKind.ANNOTATION)
        if len(operators):
            args = [spans[n].args for n in operators.tolist()]
            _place(columns, "external", operators, fields.externals(args))
            _place(columns, "sequence", operators, fields.ints([a.sequence for a in args]))
            _place(columns, "shapes", operators, fields.shapes(args))
            _place(columns, "collective", operators, fields.collectives(args))
        self.chunk.add(HostEvents, columns)

    def _device(self, spans: list[Any], kind: Column, start: Column, duration: Column) -> None:
        fields = self._fields
        args = [span.args for span in spans]
        columns: Columns = {
            "kind": kind,
            "name": fields.names(spans),
            "start": start,
            "duration": duration,
            "stream": fields.streams(spans),
            "correlation": fields.correlations(args),
            "external": fields.externals(args),
            "bytes": fields.counts([each.bytes for each in args]),
            "geometry": fields.geometries(args),
            "collective": fields.collectives(args),
            "graph": fields.graphs(args),
        }
        self.chunk.add(DeviceEvents, columns)

    def _sync(self, spans: list[Any], _: Column, start: Column, duration: Column) -> None:
        fields = self._fields
        args = [span.args for span in spans]
        columns: Columns = {
            "name": fields.names(spans),
            "start": start,
            "duration": duration,
            "stream": fields.optional_streams(spans, [each.stream for each in args]),
            "correlation": fields.correlations(args),
            "waits_for": fields.optional_streams(spans, [each.waits_for for each in args]),
        }
        self.chunk.add(SyncEvents, columns)

    def _memory(self, moves: list[Any], time: Column) -> None:
        usable = np.flatnonzero(time != UNUSABLE)
        if len(usable) < len(moves):
            self.chunk.dropped["without a usable time"] += len(moves) - len(usable)
            moves, time = [moves[n] for n in usable.tolist()], time[usable]
        if not moves:
            return
        fields = self._fields
        args = [move.args for move in moves]
        device = fields.ints([each.device if each.device_type else NOTHING for each in args])
        columns: Columns = {
            "time": time,
            "device": np.where(np.abs(device) < 2**15, device, NOTHING).astype(np.int16),
            "address": addresses([each.address for each in args]),
            "bytes": fields.counts([each.bytes for each in args]),
            "allocated": fields.ints([each.allocated for each in args]),
            "reserved": fields.ints([each.reserved for each in args]),
            "thread": fields.threads(moves),
        }
        self.chunk.add(MemoryEvents, columns)

    def _halves(self, halves: list[Any], times: Column) -> None:
        for half, time in zip(halves, times.tolist(), strict=True):
            if time == UNUSABLE:
                self.chunk.dropped["without a usable time"] += 1
                continue
            code = NOTHING if type(half) is End else self._codes[half.cat]
            name = self._tables.names[half.name] if 0 <= code < DEVICE else NOTHING
            thread = self._tables.threads[half.pid, half.tid]
            self.chunk.halves.append((thread, time, code, name))


def _place(columns: Columns, name: str, where: Column, values: Column) -> None:
    """Put the values of some host events into a column that is NOTHING elsewhere."""
    if name not in columns:
        columns[name] = np.full(len(columns["kind"]), NOTHING, column_types(HostEvents)[name])
    columns[name][where] = values
