"""Says in words how far a recording can be trusted."""

import numpy as np

from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import NOTHING, HostKind, Timeline
from stepscope.trace.kineto_header import About
from stepscope.trace.kineto_parts import Part


def describe(timeline: Timeline, last: Part, about: About) -> None:
    """Add notes to a timeline's quality; StepscopeError where it has no events at all."""
    quality = timeline.quality
    if not quality.kept:
        raise StepscopeError(_why_nothing(timeline, last))
    if last.inside or last.damage or not about.whole:
        quality.truncated = True
        quality.notes.append(_where_it_ends(timeline, last))
    quality.notes += [*_unlaunched(timeline), *_skew(timeline), *_far_away(timeline)]


def _why_nothing(timeline: Timeline, last: Part) -> str:
    quality = timeline.quality
    if last.damage:
        return f"{last.damage}: no event could be read"
    if quality.read:
        reasons = sorted({**quality.dropped, **quality.ignored}.items(), key=lambda item: -item[1])
        listed = "; ".join(f"{count:,} {reason}" for reason, count in reasons[:3])
        return f"holds no operators, kernels or memory events ({listed})"
    return 'is JSON but not a trace: it holds no events ("traceEvents")'


def _where_it_ends(timeline: Timeline, last: Part) -> str:
    why = last.damage or "the file ends too early"
    return (
        f"{why}, after {last.size / 1e6:,.1f} MB of text and {timeline.quality.read:,} events: "
        f"what is there covers {timeline.span[1] / 1e6:,.1f} ms"
    )


def _unlaunched(timeline: Timeline) -> list[str]:
    host, device = timeline.host, timeline.device
    alone = device.launch == NOTHING
    if not alone.any():
        return []
    calls = host.correlation[(host.kind == HostKind.RUNTIME) & (host.correlation >= 0)]
    first = int(calls.min()) if len(calls) else 0
    early = alone & (device.correlation >= 0) & (device.correlation < first)
    notes = []
    for count, what in (
        (int(early.sum()), "were launched before the recording began"),
        (int((alone & ~early).sum()), "have no recorded launch"),
    ):
        if count:
            notes.append(f"{count:,} of {len(device):,} device events {what}")
    return notes


def _skew(timeline: Timeline) -> list[str]:
    device = timeline.device
    linked = device.launch != NOTHING
    lead = timeline.host.start[device.launch[linked]] - device.start[linked]
    early = lead > 0
    if not early.any():
        return []
    return [
        f"{int(early.sum()):,} device events start before the call that launched them, by up to "
        f"{int(lead.max()) / 1000:,.1f} µs: the clocks of host and device differ"
    ]


def _far_away(timeline: Timeline) -> list[str]:
    """Events an hour or more from all others usually carry a wrong time."""
    times = timeline.host.start if len(timeline.host) else timeline.device.start
    if not (np.diff(times) > 3600 * 10**9).any():
        return []
    return ["events lie more than an hour apart with nothing between: some times may be wrong"]
