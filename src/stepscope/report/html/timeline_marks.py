"""The timeline's ruler: steps, and the phases that the host's own marks tell of."""

import numpy as np

from stepscope.analyze.timeline.attribution import is_operator, nearest
from stepscope.analyze.timeline.steps import Steps
from stepscope.analyze.timeline.threads import backward_threads, calling_thread
from stepscope.record.timeline import NOTHING, Column, Timeline
from stepscope.report.html.timeline_tracks import Track, Words
from stepscope.report.names import PHASES

_MARKS = (
    ("data_wait", "enumerate(DataLoader)"),
    ("optimizer", "Optimizer."),
    ("backward", "autograd::engine::evaluate_function"),
)
"""How names begin that tell a phase; operators outside of all these are the forward pass."""


def step_track(steps: Steps, words: Words) -> Track | None:
    """None where the recording is not told apart into steps."""
    if steps.how == "whole":
        return None
    names = [words.names.number(step.name) for step in steps.steps]
    start = np.array([step.start_ns for step in steps.steps], np.int64)
    end = np.array([step.end_ns for step in steps.steps], np.int64)
    category = np.full(len(names), words.categories.number("step"), np.int64)
    nothing = np.full(len(names), NOTHING, np.int64)
    label = "steps"
    return Track(
        "step", label, None, start, end - start, np.array(names), category, nothing, nothing
    )


def phase_track(timeline: Timeline, words: Words) -> Track | None:
    """Marks of the same phase that follow each other count as one; None without any."""
    host, caller = timeline.host, calling_thread(timeline)
    if caller == NOTHING:
        return None
    phase = _phase_of_events(timeline)
    threads = backward_threads(timeline)
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
    which = told[first]
    phases = list(PHASES)
    names = [words.names.number(PHASES[phases[one]]) for one in which.tolist()]
    keys = [words.categories.number(f"phase: {PHASES[phases[one]]}") for one in which.tolist()]
    nothing = np.full(len(names), NOTHING, np.int64)
    return Track(
        "phase", "phases, as the host's marks tell", None,
        begin, until - begin, np.array(names), np.array(keys), nothing, nothing,
    )  # fmt: skip


def _phase_of_events(timeline: Timeline) -> Column:
    """For each host event that opens a stretch of a phase its number in PHASES, else NOTHING."""
    host, phases = timeline.host, list(PHASES)
    told = np.full(len(host), NOTHING, np.int64)
    for phase, beginning in _MARKS:
        if len(host):
            told[timeline.named(beginning)[host.name] & (host.name >= 0)] = phases.index(phase)
    operators = is_operator(timeline)
    inside = nearest(host.parent, (told != NOTHING) | operators)[host.parent] != NOTHING
    told[operators & (told == NOTHING)] = phases.index("forward")
    told[inside] = NOTHING
    return told
