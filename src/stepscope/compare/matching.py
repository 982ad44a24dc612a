"""The work of two steps, matched by name and position."""

from collections import defaultdict, deque
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final, NamedTuple

from stepscope.compare.work import Work

_MOST: Final = 6_000_000
"""Comparisons that may be needed to align two steps; beyond, the n-th of a name is the n-th."""


class Matched(NamedTuple):
    """Places in either step: those that belong together, and those without a partner."""

    pairs: list[tuple[int, int]]
    gone: list[int]
    new: list[int]


def match(base: Sequence[Work], other: Sequence[Work]) -> Matched:
    """What follows the same things is the same thing; the rest is gone or new."""
    ours, theirs = [one.name for one in base], [one.name for one in other]
    pairs = _aligned(ours, theirs) if _effort(ours, theirs) <= _MOST else _in_turn(ours, theirs)
    kept, met = {a for a, _ in pairs}, {b for _, b in pairs}
    return Matched(
        pairs,
        [place for place in range(len(ours)) if place not in kept],
        [place for place in range(len(theirs)) if place not in met],
    )


def _effort(ours: list[str], theirs: list[str]) -> int:
    """Places of equal names in both, which is what an alignment looks through."""
    counts: defaultdict[str, int] = defaultdict(int)
    for name in theirs:
        counts[name] += 1
    return sum(counts[name] for name in ours)


def _aligned(ours: list[str], theirs: list[str]) -> list[tuple[int, int]]:
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return [(block.a + n, block.b + n) for block in blocks for n in range(block.size)]


def _in_turn(ours: list[str], theirs: list[str]) -> list[tuple[int, int]]:
    places: defaultdict[str, deque[int]] = defaultdict(deque)
    for place, name in enumerate(theirs):
        places[name].append(place)
    return [(at, places[name].popleft()) for at, name in enumerate(ours) if places[name]]
