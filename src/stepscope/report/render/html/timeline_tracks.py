"""The tracks of the page's timeline: steps, phases, devices, idle time, threads, memory."""

import json
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline import attribution, host_threads, idle
from stepscope.analyze.timeline.intervals import DeviceWork, device_of_events
from stepscope.analyze.timeline.memory import memory_use
from stepscope.analyze.timeline.names import blocking_calls, starts_with
from stepscope.analyze.timeline.steps import RecordedSteps
from stepscope.record.timeline import NOTHING, Column, DeviceKind, Geometry, Timeline
from stepscope.record.units import format_bytes
from stepscope.report.story.phrases import PHASE_NAMES, joined
from stepscope.report.text import keep_start, one_line

_HOST_KINDS = ("operator", "annotation", "Python", "runtime call", "profiler")
"""In the order of HostKind."""


@dataclass(frozen=True, slots=True)
class Track:
    """Events of one thread, stream or the like, ordered by start, then longest first. Times are the
    timeline's nanoseconds."""

    kind: str
    """step, phase, idle, stream, copy or thread."""
    label: str
    device: int | None
    start: Column
    duration: Column
    name: Column
    """Index into TimelineText.names."""
    category: Column
    """Index into TimelineText.categories."""
    detail: Column
    """Index into TimelineText.details, or NOTHING."""
    source: Column
    """The row in the timeline's host events (threads) or device events, else NOTHING."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(slots=True)
class Interned:
    """Unique texts by number."""

    texts: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """The number of a text's displayable form."""
        shown = readable(text)
        found = self._known.get(shown)
        if found is None:
            found = self._known[shown] = len(self.texts)
            self.texts.append(shown)
        return found

    def numbers(self, texts: list[str], used: Column) -> Column:
        """Converts indices into `texts` to numbers here; NOTHING stays."""
        table = np.full(len(texts) + 1, NOTHING, np.int64)
        for index in np.unique(used[used >= 0]).tolist():
            table[index] = self.number(texts[index])
        numbered: Column = table[used]
        return numbered


@dataclass(slots=True)
class TimelineText:
    """All text of a timeline."""

    names: Interned = field(default_factory=Interned)
    details: Interned = field(default_factory=Interned)
    categories: Interned = field(default_factory=Interned)


def readable(text: str) -> str:
    """Strangers' text on one line, shortened."""
    return keep_start(one_line(text), 500)


def _device_name(device: int) -> str:
    """`GPU 0`; work without a recorded stream has no number."""
    return f"GPU {device}" if device >= 0 else "unknown device"


_MARKS = (
    ("data_wait", "enumerate(DataLoader)"),
    ("optimizer", "Optimizer."),
    ("backward", attribution.AUTOGRAD_NODE),
)
"""Name prefixes that mark a phase; operators outside all of them are the forward pass."""


def step_track(steps: RecordedSteps, words: TimelineText) -> Track | None:
    """The steps; None if the recording has none."""
    if steps.how == "whole":
        return None
    name = np.array([words.names.number(step.name) for step in steps.steps])
    start = np.array([step.start_ns for step in steps.steps], np.int64)
    length = np.array([step.end_ns for step in steps.steps], np.int64) - start
    category = np.full(len(name), words.categories.number("step"), np.int64)
    nothing = np.full(len(name), NOTHING, np.int64)
    return Track("step", "steps", None, start, length, name, category, nothing, nothing)


def phase_track(timeline: Timeline, words: TimelineText) -> Track | None:
    """The phases, with adjacent marks of a phase joined; None if there are none."""
    host, caller = timeline.host, host_threads.calling_thread(timeline)
    if caller == NOTHING:
        return None
    phase = _phase_of_events(timeline)
    threads = host_threads.backward_threads(timeline)
    threads[caller] = True
    rows = np.flatnonzero((phase != NOTHING) & threads[host.thread])
    if not len(rows):
        return None
    start, told = host.start[rows], phase[rows]
    end = np.maximum.accumulate(start + host.duration[rows])
    first = np.concatenate(([True], told[1:] != told[:-1]))
    last = np.concatenate((first[1:], [True]))
    begin, until = start[first], end[last]
    until[:-1] = np.minimum(until[:-1], begin[1:])
    names = list(PHASE_NAMES.values())
    phases = [names[one] for one in told[first].tolist()]
    name = np.array([words.names.number(one) for one in phases])
    category = np.array([words.categories.number(f"phase: {one}") for one in phases])
    nothing = np.full(len(begin), NOTHING, np.int64)
    label, length = "phases, by the host's marks", until - begin
    return Track("phase", label, None, begin, length, name, category, nothing, nothing)


def _phase_of_events(timeline: Timeline) -> Column:
    """For each host event, the number in PHASES of the phase it opens, else NOTHING."""
    host, phases = timeline.host, list(PHASE_NAMES)
    told = np.full(len(host), NOTHING, np.int64)
    for phase, beginning in _MARKS:
        told[starts_with(timeline, beginning)] = phases.index(phase)
    operators = attribution.is_operator(timeline)
    inside = attribution.nearest(host.parent, (told != NOTHING) | operators)[host.parent] != NOTHING
    told[operators & (told == NOTHING)] = phases.index("forward")
    told[inside] = NOTHING
    return told


_MOST_COUNTER_POINTS = 40_000  # points of a counter


class Counter(NamedTuple):
    """A level that holds from each time until the next."""

    label: str
    device: int | None
    time: Column
    bytes: Column


def counters(timeline: Timeline, steps: RecordedSteps) -> list[Counter]:
    """One per device, or the host's if no device memory was recorded."""
    found = []
    for use in memory_use(timeline, steps.steps) or []:
        memory = timeline.memory
        rows = np.flatnonzero(memory.device == (NOTHING if use.device is None else use.device))
        time, level = memory.time[rows], memory.allocated[rows]
        if len(rows) > _MOST_COUNTER_POINTS or (level < 0).any():
            time = np.array([point.time_ns for point in use.points], np.int64)
            level = np.array([point.allocated_bytes for point in use.points], np.int64)
        where = "Host" if use.device is None else f"GPU {use.device}"
        found.append(Counter(f"{where} memory allocated", use.device, time, level))
    return found


def device_tracks(timeline: Timeline, words: TimelineText) -> list[Track]:
    """Per device: its streams in order of their work, then copies."""
    events, owners = timeline.device, device_of_events(timeline)
    if not len(events):
        return []
    kinds = attribution.event_categories(timeline).astype(np.int64)
    kinds[events.kind == DeviceKind.SET] = len(attribution.CATEGORIES)
    names = words.names.numbers(timeline.names, events.name)
    categories = words.categories.numbers([*attribution.CATEGORIES, "set"], kinds)
    details = _details(timeline, words)
    kernel, tracks = events.kind == DeviceKind.KERNEL, list[Track]()

    def add(kind: str, label: str, device: int, which: Column) -> None:
        rows = np.flatnonzero(which)
        rows = rows[np.lexsort((-events.duration[rows], events.start[rows]))]
        times = events.start[rows], events.duration[rows]
        told = names[rows], categories[rows], details[rows]
        tracks.append(Track(kind, f"{_device_name(device)} {label}", device, *times, *told, rows))

    for device in np.unique(owners).tolist():
        mine = owners == device
        streams, counts = np.unique(events.stream[mine & kernel], return_counts=True)
        for stream in streams[np.argsort(-counts, kind="stable")].tolist():
            name = timeline.streams[stream].stream if stream >= 0 else "unknown"
            add("stream", f"stream {name}", device, mine & kernel & (events.stream == stream))
        if (mine & ~kernel).any():
            add("copy", "copies and sets", device, mine & ~kernel)
    return tracks


def _details(timeline: Timeline, words: TimelineText) -> Column:
    """How a kernel was launched, what a collective moved, how much was copied."""
    events, numbers = timeline.device, words.details.numbers
    copies = (events.kind != DeviceKind.KERNEL) & (events.bytes >= 0)
    sizes, which = np.unique(np.where(copies, events.bytes, NOTHING), return_inverse=True)
    moved = numbers([format_bytes(one) for one in sizes.tolist()], which.ravel())
    launched = numbers([_geometry(one) for one in timeline.geometries], events.geometry)
    talks = [f"{c.name} {c.dtype or ''} {c.in_elements or ''}" for c in timeline.collectives]
    spoken = numbers([text.strip() for text in talks], events.collective)
    found = np.where(events.collective >= 0, spoken, launched)
    chosen: Column = np.where(copies, moved, found)
    return chosen


def _geometry(one: Geometry) -> str:
    """`grid 98×1×1 · block 256×1×1 · 32 registers · 48 KiB shared · occupancy 50%`."""
    return joined(
        "grid " + "×".join(map(str, one.grid)) if one.grid else "",
        "block " + "×".join(map(str, one.block)) if one.block else "",
        f"{one.registers} registers" if one.registers else "",
        f"{format_bytes(one.shared_bytes)} shared" if one.shared_bytes else "",
        f"occupancy {one.occupancy:.0%}" if one.occupancy is not None else "",
    )


def _shape_words(dims: bytes, types: bytes) -> str:
    """`float 64×3×224×224, float 64×3×7×7`; unchanged if it is not such a list."""
    try:
        shapes, kinds = json.loads(dims), json.loads(types or b"[]")
    except ValueError:
        return dims.decode("utf-8", "replace")
    if not isinstance(shapes, list) or not isinstance(kinds, list):
        return dims.decode("utf-8", "replace")
    shown = []
    for at, shape in enumerate(shapes):
        if isinstance(shape, list) and shape and not isinstance(shape[0], list):
            kind = kinds[at] if at < len(kinds) else ""
            shown.append(f"{kind} {'×'.join(map(str, shape))}".strip())
    return ", ".join(shown)


_MOST_THREADS = 64  # threads with a track of their own


def host_tracks(timeline: Timeline, words: TimelineText) -> tuple[list[Track], int]:
    """The tracks, and the number of events on threads without one."""
    host, by_thread = timeline.host, host_threads.ByThread(timeline)
    names = words.names.numbers(timeline.names, host.name)
    category = words.categories.numbers(list(_HOST_KINDS), host.kind.astype(np.int64))
    shapes = [_shape_words(one.dims, one.types) for one in timeline.shapes]
    detail = words.details.numbers(shapes, host.shapes)
    empty = words.details.number("")
    detail[detail == empty] = -1
    caller = host_threads.calling_thread(timeline)
    counts = np.bincount(host.thread, minlength=len(timeline.threads))
    order = sorted(np.flatnonzero(counts).tolist(), key=lambda one: (one != caller, -counts[one]))
    tracks = []
    for thread in order[:_MOST_THREADS]:
        rows: Column = by_thread.rows(thread)
        one = timeline.threads[thread]
        label = (one.name or f"thread {one.tid}") + (" · main" if thread == caller else "")
        times = host.start[rows], host.duration[rows]
        told = names[rows], category[rows], detail[rows]
        tracks.append(Track("thread", label, None, *times, *told, rows))
    return tracks, int(counts[order[_MOST_THREADS:]].sum())


def idle_tracks(
    timeline: Timeline, steps: RecordedSteps, work: list[DeviceWork], words: TimelineText
) -> list[Track]:
    """One per active device: the pieces whose sums `analyze` prints."""
    blocking = blocking_calls(timeline)
    waits, main = idle.HostWaits(timeline, blocking), host_threads.main_thread(timeline)
    start, end = steps.steps[0].start_ns, steps.steps[-1].end_ns
    tracks = []
    for one in work:
        gaps = idle.find_gaps(timeline, one, start, end, main)
        pieces = idle.find_idle_causes(timeline, one, gaps, blocking, waits, main)
        if len(pieces.start):
            tracks.append(_idle_track(timeline, one.device, pieces, words))
    return tracks


def _idle_track(
    timeline: Timeline, device: int, pieces: idle.IdlePieces, words: TimelineText
) -> Track:
    """Adjacent pieces with the same cause and the same blamed call are one."""
    same = (pieces.cause[1:] == pieces.cause[:-1]) & (pieces.event[1:] == pieces.event[:-1])
    first = np.concatenate(([True], ~same | (pieces.start[1:] != pieces.end[:-1])))
    last = np.concatenate((first[1:], [True]))
    start, cause = pieces.start[first], pieces.cause[first]
    causes = [f"idle: {cause.replace('_', ' ')}" for cause in idle.IDLE_CAUSES]
    names, categories = words.names.numbers(causes, cause), words.categories.numbers(causes, cause)
    blamed = np.append(timeline.host.name, NOTHING)[pieces.event[first].astype(np.int64)]
    detail = words.details.numbers(timeline.names, blamed)
    told = names, categories, detail, np.full(len(start), NOTHING, np.int64)
    label = f"{_device_name(device)} idle, by cause"
    return Track("idle", label, device, start, pieces.end[last] - start, *told)
