"""The places in the program that idle time is due to."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.hostat import innermost, places
from stepscope.analyze.timeline.idlepieces import Pieces
from stepscope.record.timeline import Column, Timeline

_LISTED = 10
_SAMPLE_NS = 50_000  # long pieces are looked at this often,
_SAMPLES = 20  # but not more often than so


@dataclass(frozen=True, slots=True)
class Place:
    """A place and the idle time due to it."""

    where: str | None  # source line or operator on the host; None: nothing was recorded there
    operator: str | None  # the innermost operator, None outside of any
    total_ns: int


class Samples(NamedTuple):
    """Looks at the host during the pieces; their weights add up to the pieces' lengths."""

    piece: Column
    weight: Column
    where: Column  # into Timeline.names
    operator: Column


def look(timeline: Timeline, pieces: Pieces, thread: Column, main: int) -> Samples:
    """Where the host was in each piece; thread is the launching one of each.

    A piece without an event to blame is given to what its thread, or else the main one, was doing,
    seen at evenly spread times.
    """
    length = pieces.end - pieces.start
    parts = np.where(pieces.event >= 0, 1, np.clip(length // _SAMPLE_NS, 1, _SAMPLES))
    piece = np.repeat(np.arange(len(length)), parts)
    nth = np.arange(len(piece)) - np.repeat(np.cumsum(parts) - parts, parts)
    begin = length[piece] * nth // parts[piece]
    weight = length[piece] * (nth + 1) // parts[piece] - begin
    event = pieces.event[piece].astype(np.int64)
    looked = np.flatnonzero(event < 0)
    time = pieces.start[piece[looked]] + begin[looked] + weight[looked] // 2
    event[looked] = innermost(timeline, thread[piece[looked]], time)
    bare = event[looked] < 0
    event[looked[bare]] = innermost(timeline, np.full(int(bare.sum()), main), time[bare])
    return Samples(piece, weight, *places(timeline, event))


def rank(timeline: Timeline, samples: Samples) -> list[Place]:
    """The costliest places."""
    keys = samples.where * (len(timeline.names) + 1) + samples.operator  # one number per pair
    _, first, member = np.unique(keys, return_index=True, return_inverse=True)
    totals = np.zeros(len(first), np.int64)
    np.add.at(totals, member, samples.weight)
    return [
        Place(
            where=timeline.name_of(int(samples.where[first[n]])) or None,
            operator=timeline.name_of(int(samples.operator[first[n]])) or None,
            total_ns=int(totals[n]),
        )
        for n in np.argsort(-totals, kind="stable")[:_LISTED].tolist()
    ]
