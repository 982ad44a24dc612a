"""Pairs the items of two sides, finds each pair's noise floor, and gives its verdict."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Final, NamedTuple, cast

from stepscope.compare.sides import BASELINE_ITEM, FIXED_ITEM, Item, Side, merge_items
from stepscope.hardware.noise_floors import MIN_GROUP_SIZE, NoiseFloor, save_group
from stepscope.record.errors import UsageError
from stepscope.results.comparison import FloorSource, ItemVerdict, ResultKind, Verdict
from stepscope.stats.intervals import (
    DEFAULT_NOISE_FLOOR,
    FEW_PROCESSES_FLOOR,
    Processes,
    block_means,
    log_means,
    why_unstable,
)
from stepscope.stats.verdict import compare_processes, noise_floor, verdict_for_interval

_MANY_TIMES: Final = 30  # on a machine with a load three times its cores


class FloorInUse(NamedTuple):
    """The noise floor of a comparison, as a share, and its source."""

    share: float
    source: FloorSource
    processes: int | None = None
    """How many processes a stored floor was measured on."""
    variation: float = 0.0
    """Variation within a process, a share, if it raised an assumed floor."""


def floor_of_pair(
    base: Processes, other: Processes, stored: NoiseFloor | None, recorded: bool
) -> FloorInUse:
    """From three processes per side, their own noise; else the stored floor; else an assumed one.

    `recorded`: times are of a few recorded steps, for which no floor is known.
    """
    fewest = min(len(base), len(other))
    own = noise_floor([base, other]) if fewest >= MIN_GROUP_SIZE else None
    if own is not None:
        return FloorInUse(own, FloorSource.OWN)
    if recorded:  # too short to tell whether steps are uneven
        return FloorInUse(DEFAULT_NOISE_FLOOR, FloorSource.ASSUMED)
    if stored is not None:
        return FloorInUse(stored.share, FloorSource.STORED, stored.processes)
    usual = DEFAULT_NOISE_FLOOR if fewest == 1 else FEW_PROCESSES_FLOOR
    # If steps are uneven within a process, processes differ by many times that: load changes more
    # slowly than a process lasts.
    several = [*base, *other]
    unstable = any(why_unstable([one]) for one in several)
    uneven = max(map(_between_blocks, several)) if unstable else 0.0
    return FloorInUse(max(usual, _MANY_TIMES * uneven), FloorSource.ASSUMED, variation=uneven)


def _between_blocks(series: Sequence[float]) -> float:
    """The standard deviation of blocks of steps, as a share; 0 if there are too few."""
    means = block_means(series)
    return float(means.std(ddof=1) / means.mean()) if len(means) > 1 else 0.0


def stored_floor(base: Sequence[Side], other: Sequence[Side]) -> NoiseFloor | None:
    """The largest floor the results hold: the one known when each was made, and the one all their
    processes show together. None if they come from different machines."""
    sides = (*base, *other)
    if len({side.machine_key for side in sides}) != 1:
        return None
    items = (item for side in (base, other) for item in merge_items(side).values())
    groups = [item.series for item in items if len(item.series) >= MIN_GROUP_SIZE]
    known = [side.noise for side in sides if side.noise is not None]
    if (own := noise_floor(groups)) is not None:
        known.append(NoiseFloor(own, sum(map(len, groups))))
    return max(known, key=lambda floor: floor.share, default=None)


def remember_noise(sides: Sequence[Side]) -> None:
    """Store the noise between processes of one side, for later comparisons."""
    key = sides[0].machine_key
    if key is None or len({(side.machine_key, side.program) for side in sides}) > 1:
        return
    for item in merge_items(sides).values():
        means = [sum(series) / len(series) for series in item.series]
        save_group(key, sides[0].noise_key(item), means)


_SAME_SAMPLES: Final = 0.01  # of a step, as a share: below, times per step are compared
_TAIL: Final = 0.025
_WORK: Final = {"batches": "a data loader alone"}


@dataclass(frozen=True, slots=True)
class Pair:
    """Two items that belong together."""

    base: Item
    other: Item

    @property
    def by_sample(self) -> bool:
        """Whether their steps differ in samples, so that times per sample are compared."""
        a, b = self.base.samples, self.other.samples
        return bool(a and b and abs(a / b - 1) > _SAME_SAMPLES)

    @property
    def scale(self) -> float:
        """Factor that scales the other's steps to the base's samples per step; 1 if they are
        equal."""
        return (self.base.samples or 1.0) / (self.other.samples or 1.0) if self.by_sample else 1.0


def judge_pair(
    pair: Pair, stored: NoiseFloor | None, recorded: bool, pairs: int = 1
) -> ItemVerdict:
    """The verdict on a pair. `recorded`: times come from traces.

    With several pairs, each interval is widened so that all hold together 19 times of 20, by the
    normal distribution.
    """
    base, other = (
        [[ms / (item.samples or 1.0) for ms in one] for one in item.series]
        if pair.by_sample
        else item.series
        for item in (pair.base, pair.other)
    )
    floor = floor_of_pair(base, other, stored, recorded)
    found = compare_processes(base, other, floor.share)
    wider = NormalDist().inv_cdf(1 - _TAIL / pairs) / NormalDist().inv_cdf(1 - _TAIL)
    reach = log(found.high / found.ratio) * wider
    low, high = found.ratio * exp(-reach), found.ratio * exp(reach)
    base_ms, other_ms = (
        exp(float(log_means(item.series).mean())) for item in (pair.base, pair.other)
    )
    return ItemVerdict(
        key=pair.base.key,
        label=pair.base.label,
        verdict=cast(Verdict, verdict_for_interval(low, high, found.floor).name),
        change=1 / found.ratio - 1,
        low=1 / high - 1,
        high=1 / low - 1,
        speedup=found.ratio,
        per="sample" if pair.by_sample else "step",
        same_within=found.floor,
        base_ms=base_ms,
        other_ms=other_ms,
        base_samples_per_s=pair.base.samples and pair.base.samples * 1e3 / base_ms,
        other_samples_per_s=pair.other.samples and pair.other.samples * 1e3 / other_ms,
        base_samples=pair.base.samples,
        other_samples=pair.other.samples,
        base_processes=len(base),
        other_processes=len(other),
        base_steps=sum(map(len, base)),
        other_steps=sum(map(len, other)),
        noise_floor=floor.share,
        noise_floor_from=floor.source,
        noise_floor_processes=floor.processes,
        within_process_variation=floor.variation,
    )


def pair_items(base: Sequence[Side], other: Sequence[Side]) -> tuple[list[Pair], list[str]]:
    """The pairs, and the labels of items on one side only.

    Raises UsageError if nothing matches, or for training against inference.
    """
    ours, theirs = merge_items(base), merge_items(other)
    if base[0].kind is not other[0].kind:
        ours, theirs = _one(ours), _one(theirs)
    if len(ours) == 1 and len(theirs) == 1:
        pairs = [Pair(*ours.values(), *theirs.values())]
        left_out: list[str] = []
    else:
        pairs = [Pair(item, theirs[key]) for key, item in ours.items() if key in theirs]
        left_out = [item.label for key, item in ours.items() if key not in theirs]
        left_out += [item.label for key, item in theirs.items() if key not in ours]
    if not pairs:
        a, b = _described(base[0], len(ours)), _described(other[0], len(theirs))
        raise UsageError(f"nothing in common to compare: {a}, {b}")
    for pair in pairs:
        works = [one.what for one in (pair.base, pair.other) if one.what is not None]
        if len(set(works)) > 1:
            a, b = (_WORK.get(what, what) for what in works)
            raise UsageError(f"cannot compare {a} ({base[0].name}) with {b} ({other[0].name})")
    return pairs, left_out


def _described(side: Side, items: int) -> str:
    count = f" of {items} points" if side.kind is ResultKind.BENCH else ""
    return f"{side.name} is a {side.kind}{count}"


def _one(items: dict[str, Item]) -> dict[str, Item]:
    """The one item that stands for a side: of a tune, its final state."""
    final = next((key for key in (FIXED_ITEM, BASELINE_ITEM) if key in items), None)
    return items if final is None else {final: items[final]}
