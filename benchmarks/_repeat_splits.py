"""Processes of one point against each other, as if they were two: what is claimed of nothing."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from typing import Any

SIDES = (1, 2, 3, 5)  # processes
INDEPENDENT = 3
_SPLITS = 400  # of one point and size, at most
_SEED = 5

Split = tuple[tuple[int, ...], tuple[int, ...]]


def all_splits(processes: int, side: int) -> list[Split]:
    """Two groups of `side` that have no process in common, every pair of groups once; a seeded
    choice of them where there are very many."""
    found = list(_pairs(processes, side))
    return sorted(Random(_SEED).sample(found, _SPLITS)) if len(found) > _SPLITS else found


def _pairs(processes: int, side: int) -> Iterator[Split]:
    for ours in combinations(range(processes), side):
        rest = [place for place in range(ours[0] + 1, processes) if place not in ours]
        yield from ((ours, theirs) for theirs in combinations(rest, side))


def independent(processes: int, side: int = INDEPENDENT) -> list[Split]:
    """Groups that follow each other in time and share no process with the next: every other
    process to a side, as a benchmark's rounds alternate."""
    starts = range(0, processes - 2 * side + 1, 2 * side)
    return [
        (tuple(range(at, at + 2 * side, 2)), tuple(range(at + 1, at + 2 * side, 2)))
        for at in starts
    ]


def verdicts(series: Sequence[Sequence[float]], splits: Sequence[Split]) -> dict[str, int]:
    """How often each verdict is given, with the noise floor that such a benchmark would know."""
    from stepscope.stats.verdict import compare_processes, noise_floor

    counts: Counter[str] = Counter()
    for split in splits:
        base, other = ([series[place] for place in side] for side in split)
        counts[compare_processes(base, other, noise_floor([base, other])).verdict.name] += 1
    return dict(counts)


def counted(series: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The verdicts of one point's processes, by the size of the sides, and of independent pairs."""
    sizes = [side for side in SIDES if 2 * side <= len(series)]
    return {
        "splits": {str(side): verdicts(series, all_splits(len(series), side)) for side in sizes},
        "independent": verdicts(series, independent(len(series))),
    }


def claims(counts: dict[str, int]) -> int:
    """How many verdicts say that there is a difference."""
    return counts.get("FASTER", 0) + counts.get("SLOWER", 0)
