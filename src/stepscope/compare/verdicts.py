"""Which items belong together, the noise floor each comparison rests on, and the verdict on each
pair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Final, NamedTuple, cast

from stepscope.compare.sides import BASELINE_ITEM, FIXED_ITEM, Item, Side, merge_items
from stepscope.hardware.noise_floors import (
    MIN_GROUP_SIZE,
    NoiseFloor,
    known_noise_floor,
    save_group,
)
from stepscope.record.errors import UsageError
from stepscope.results.comparison import FloorSource, ItemVerdict, ResultKind, Verdict
from stepscope.stats.intervals import (
    DEFAULT_NOISE_FLOOR,
    FEW_PROCESSES_FLOOR,
    Processes,
    block_means,
    log_means,
)
from stepscope.stats.stability import why_unstable
from stepscope.stats.verdict import compare_processes, noise_floor, verdict_for_interval

StoredFloor = Callable[[Item], NoiseFloor | None]
"""What is known of the noise of an item, from earlier."""


_MANY_TIMES: Final = 30  # on a machine with three times as much to do as it has cores


class FloorInUse(NamedTuple):
    """The noise floor of a comparison, as a share, and where it comes from."""

    share: float
    source: FloorSource
    processes: int | None = None
    """A stored floor was measured on."""
    variation: float = 0.0
    """Within a process, a share, where it raised an assumed floor."""


def floor_of_pair(
    base: Processes, other: Processes, stored: NoiseFloor | None, recorded: bool
) -> FloorInUse:
    """Of three processes a side their own noise; else what was stored; else what is assumed.

    `recorded`: times are of a few recorded steps, for which nothing is stored.
    """
    fewest = min(len(base), len(other))
    own = noise_floor([base, other]) if fewest >= MIN_GROUP_SIZE else None
    if own is not None:
        return FloorInUse(own, FloorSource.OWN)
    if recorded:
        return _assumed([], DEFAULT_NOISE_FLOOR)
    if stored is None:
        usual = DEFAULT_NOISE_FLOOR if fewest == 1 else FEW_PROCESSES_FLOOR
        return _assumed([*base, *other], usual)
    source = FloorSource.SAME_PROGRAM if stored.same else FloorSource.OTHER_PROGRAMS
    return FloorInUse(stored.share, source, stored.processes)


def _assumed(several: Processes, usual: float) -> FloorInUse:
    """Where steps are uneven within a process, processes differ by many times that: what load
    there is changes more slowly than a process lasts. Recordings are too short to tell."""
    uneven = max(map(_between_blocks, several)) if any(map(why_unstable, several)) else 0.0
    return FloorInUse(max(usual, _MANY_TIMES * uneven), FloorSource.ASSUMED, variation=uneven)


def _between_blocks(series: Sequence[float]) -> float:
    """The standard deviation of blocks of steps, as a share; 0 of too few."""
    means = block_means(series)
    return float(means.std(ddof=1) / means.mean()) if len(means) > 1 else 0.0


def stored_floor(sides: Sequence[Side]) -> StoredFloor:
    """Looks items up in the cache of the machine all sides come from; None where they differ."""
    keys = {key for side in sides if (key := side.machine_key()) is not None}
    if len(keys) != 1:
        return lambda item: None
    (key,) = keys
    return lambda item: known_noise_floor(key, sides[0].noise_key(item))


def remember_noise(sides: Sequence[Side]) -> None:
    """Keep the noise between processes of one side for comparisons to come."""
    keys = {side.machine_key() for side in sides}
    (key,) = keys if len(keys) == 1 else (None,)
    if key is None or len({side.program() for side in sides}) > 1:
        return
    for item in merge_items(sides).values():
        means = [sum(series) / len(series) for series in item.series]
        save_group(key, sides[0].noise_key(item), means)


_SAME_SAMPLES: Final = 0.01  # of a step, as a share: below, steps are held against each other
_TAIL: Final = 0.025


@dataclass(frozen=True, slots=True)
class Pair:
    """Two items that belong together."""

    base: Item
    other: Item

    @property
    def by_sample(self) -> bool:
        """Whether a step of one has another number of samples than a step of the other."""
        a, b = self.base.samples, self.other.samples
        return bool(a and b and abs(a / b - 1) > _SAME_SAMPLES)


def judge_pair(pair: Pair, stored: StoredFloor, recorded: bool, pairs: int = 1) -> ItemVerdict:
    """The verdict on a pair. `recorded`: times come from traces.

    With several pairs each interval is widened so that all hold together 19 times of 20, by the
    normal distribution.
    """
    base, other = _times(pair.base, pair), _times(pair.other, pair)
    floor = floor_of_pair(base, other, stored(pair.base), recorded)
    found = compare_processes(base, other, floor.share)
    wider = NormalDist().inv_cdf(1 - _TAIL / pairs) / NormalDist().inv_cdf(1 - _TAIL)
    reach = log(found.high / found.ratio) * wider
    low, high = found.ratio * exp(-reach), found.ratio * exp(reach)
    base_ms, other_ms = (_mean_ms(item) for item in (pair.base, pair.other))
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


def _times(item: Item, pair: Pair) -> Processes:
    """Step times of each process, or times of a sample where steps differ in samples."""
    per = (item.samples or 1.0) if pair.by_sample else 1.0
    return [[ms / per for ms in series] for series in item.series]


def _mean_ms(item: Item) -> float:
    return exp(float(log_means(item.series).mean()))


def pair_items(base: Sequence[Side], other: Sequence[Side]) -> tuple[list[Pair], list[str]]:
    """The pairs, and the labels of items that only one side has.

    Raises UsageError where nothing belongs together, or a training meets an inference.
    """
    ours, theirs = merge_items(base), merge_items(other)
    if base[0].kind is not other[0].kind:
        ours, theirs = _one(ours), _one(theirs)
    if len(ours) == 1 and len(theirs) == 1:
        pairs = [Pair(*ours.values(), *theirs.values())]
        left_out: list[str] = []
    else:
        pairs = [Pair(item, theirs[key]) for key, item in ours.items() if key in theirs]
        alone = [*_only(ours, theirs), *_only(theirs, ours)]
        left_out = [item.label for item in alone]
    if not pairs:
        a, b = (_described(*one) for one in ((base[0], ours), (other[0], theirs)))
        raise UsageError(f"nothing in common to compare: {a}, {b}")
    for pair in pairs:
        _check_same_work(pair, base[0].name, other[0].name)
    return pairs, left_out


def _described(side: Side, items: dict[str, Item]) -> str:
    count = f" of {len(items)} points" if side.kind is ResultKind.BENCH else ""
    return f"{side.name} is a {side.kind}{count}"


def _only(ours: dict[str, Item], theirs: dict[str, Item]) -> list[Item]:
    return [item for key, item in ours.items() if key not in theirs]


def _one(items: dict[str, Item]) -> dict[str, Item]:
    """Of a tune against another kind of result: its final state."""
    for key in (FIXED_ITEM, BASELINE_ITEM):
        if key in items:
            return {key: items[key]}
    return items


def _check_same_work(pair: Pair, base: str, other: str) -> None:
    a, b = pair.base.what, pair.other.what
    if a is not None and b is not None and a != b:
        names = {"batches": "a data loader alone", "training": "training"}
        raise UsageError(
            f"cannot compare {names.get(a, a)} ({base}) with {names.get(b, b)} ({other})"
        )
