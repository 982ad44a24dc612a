"""Which items belong together, the noise floor each comparison rests on, and the verdict on each
pair.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Any, Final, NamedTuple

from stepscope.compare.items import BASELINE_ITEM, FIXED_ITEM, Item, Side, merge_items
from stepscope.hardware.noise_floors import (
    MIN_GROUP_SIZE,
    NoiseFloor,
    known_noise_floor,
    machine_key,
    save_group,
)
from stepscope.record.errors import UsageError
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


class _FloorInUse(NamedTuple):
    """`share` is the floor; `source` says in words where it is from."""

    share: float
    source: str


def floor_of_pair(
    base: Processes, other: Processes, stored: NoiseFloor | None, recorded: bool
) -> _FloorInUse:
    """Of three processes a side their own noise; else what was stored; else what is assumed.

    `recorded`: times are of a few recorded steps, for which nothing is stored.
    """
    fewest = min(len(base), len(other))
    own = noise_floor([base, other]) if fewest >= MIN_GROUP_SIZE else None
    if own is not None:
        return _FloorInUse(own, f"their noise floor is {_percent(own)}")
    if recorded:
        return _assumed([], DEFAULT_NOISE_FLOOR)
    if stored is None:
        return _assumed(
            [*base, *other], DEFAULT_NOISE_FLOOR if fewest == 1 else FEW_PROCESSES_FLOOR
        )
    whose = "of this" if stored.same else "of other programs"
    return _FloorInUse(
        stored.share,
        "this machine's noise floor is taken to be"
        f" {_percent(max(stored.share, FEW_PROCESSES_FLOOR))},"
        f" from {stored.processes} processes {whose}",
    )


def _assumed(several: Processes, usual: float) -> _FloorInUse:
    """Where steps are uneven within a process, processes differ by many times that: what load
    there is changes more slowly than a process lasts. Recordings are too short to tell."""
    uneven = max(map(_between_blocks, several)) if any(map(why_unstable, several)) else 0.0
    share = max(usual, _MANY_TIMES * uneven)
    why = f", since steps vary by {uneven:.0%} within a process" if uneven else ""
    return _FloorInUse(
        share, f"no noise floor is known for them: {_percent(share)} is assumed{why}"
    )


def _percent(share: float) -> str:
    """`6.2%`, `15%`, `480%`: two digits at least."""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def _between_blocks(series: Sequence[float]) -> float:
    """The standard deviation of blocks of steps, as a share; 0 of too few."""
    means = block_means(series)
    return float(means.std(ddof=1) / means.mean()) if len(means) > 1 else 0.0


def stored_floor(sides: tuple[Side, ...]) -> StoredFloor:
    """Looks items up in the cache of the machine all sides come from; None where they differ."""
    keys = {key for side in sides if (key := machine_of_side(side)) is not None}
    if len(keys) != 1:
        return lambda item: None
    (key,) = keys
    return lambda item: known_noise_floor(key, noise_key(sides[0], item))


def remember_noise(sides: tuple[Side, ...]) -> None:
    """Keep the noise between processes of one side for comparisons to come."""
    keys = {machine_of_side(side) for side in sides}
    (key,) = keys if len(keys) == 1 else (None,)
    if key is None or sides[0].kind == "trace" or len({_program(side) for side in sides}) > 1:
        return
    for item in merge_items(sides).values():
        means = [sum(series) / len(series) for series in item.series]
        save_group(key, noise_key(sides[0], item), means)


def machine_of_side(side: Side) -> str | None:
    """The machine and device of a result; None of a trace, which does not tell."""
    document = side.document
    if side.kind == "run":
        machine, device = document["config"].get("machine"), document["run"].get("device")
        return machine_key(machine, device) if machine else None
    if side.kind == "trace" or not document.get("machine"):
        return None
    devices = {point["device"] for point in document.get("points", ())}
    device = "cuda" if "cuda" in devices else (document.get("run") or {}).get("device")
    return machine_key(document["machine"], device)


def noise_key(side: Side, item: Item) -> str:
    """What an item is of: a point of a bench, or a program, whether run or tuned."""
    return f"bench {item.key}" if side.kind == "bench" else f"program {_program(side)}"


def _program(side: Side) -> str:
    """Its name without the folder."""
    run = side.document.get("run") or {}
    return str(run.get("program") or "").replace("\\", "/").rpartition("/")[2]


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


def judge_pair(pair: Pair, stored: StoredFloor, recorded: bool, pairs: int = 1) -> dict[str, Any]:
    """The verdict on a pair. `change` is that of the time of a step, or of a sample, as a share.

    Of several pairs each interval is so wide that all hold together 19 times of 20, by the normal
    distribution. `recorded`: times come from traces.
    """
    base, other = _times(pair.base, pair), _times(pair.other, pair)
    stands = floor_of_pair(base, other, stored(pair.base), recorded)
    found = compare_processes(base, other, stands.share)
    wider = NormalDist().inv_cdf(1 - _TAIL / pairs) / NormalDist().inv_cdf(1 - _TAIL)
    reach = log(found.high / found.ratio) * wider
    low, high = found.ratio * exp(-reach), found.ratio * exp(reach)
    return {
        "key": pair.base.key,
        "label": pair.base.label,
        "verdict": verdict_for_interval(low, high, found.floor).name,
        "change": 1 / found.ratio - 1,
        "low": 1 / high - 1,
        "high": 1 / low - 1,
        "speedup": found.ratio,
        "per": "sample" if pair.by_sample else "step",
        "same_within": found.floor,
        **_speeds(pair),
        **_floor(stands, base, other),
    }


def _times(item: Item, pair: Pair) -> Processes:
    """Step times of each process, or times of a sample where steps differ in samples."""
    per = (item.samples or 1.0) if pair.by_sample else 1.0
    return [[ms / per for ms in series] for series in item.series]


def _speeds(pair: Pair) -> dict[str, Any]:
    means = [exp(float(log_means(item.series).mean())) for item in (pair.base, pair.other)]
    samples = [pair.base.samples, pair.other.samples]
    rates = [n * 1e3 / ms if n else None for n, ms in zip(samples, means, strict=True)]
    return {
        "base_ms": means[0],
        "other_ms": means[1],
        "base_samples_per_s": rates[0],
        "other_samples_per_s": rates[1],
        "base_samples": samples[0],
        "other_samples": samples[1],
    }


def _floor(stands: _FloorInUse, base: Processes, other: Processes) -> dict[str, Any]:
    return {
        "base_processes": len(base),
        "other_processes": len(other),
        "base_steps": sum(map(len, base)),
        "other_steps": sum(map(len, other)),
        "noise_floor": stands.share,
        "noise_floor_from": stands.source,
    }


def decisive_item(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The item that speaks for all: the worst of the slower, else unclear, else faster ones."""
    for verdict in ("SLOWER", "UNCLEAR", "FASTER", "SAME"):
        chosen = [item for item in items if item["verdict"] == verdict]
        if chosen:
            far = min if verdict == "FASTER" else max
            return far(chosen, key=lambda item: float(item["change"]))
    raise ValueError("nothing to compare")


def pair_items(base: Sequence[Side], other: Sequence[Side]) -> tuple[list[Pair], list[str]]:
    """The pairs, and the labels of items that only one side has.

    Raises UsageError where nothing belongs together, or a training meets an inference.
    """
    ours, theirs = merge_items(tuple(base)), merge_items(tuple(other))
    if base[0].kind != other[0].kind:
        ours, theirs = _one(ours), _one(theirs)
    if len(ours) == 1 and len(theirs) == 1:
        pairs = [Pair(*ours.values(), *theirs.values())]
        left_out: list[str] = []
    else:
        pairs = [Pair(item, theirs[key]) for key, item in ours.items() if key in theirs]
        alone = [*_only(ours, theirs), *_only(theirs, ours)]
        left_out = [item.label for item in alone]
    if not pairs:
        a, b = (_told(sides[0], items) for sides, items in ((base, ours), (other, theirs)))
        raise UsageError(f"nothing in common to compare: {a}, {b}")
    for pair in pairs:
        _alike(pair, base[0].name, other[0].name)
    return pairs, left_out


def _told(side: Side, items: dict[str, Item]) -> str:
    count = f" of {len(items)} points" if side.kind == "bench" else ""
    return f"{side.name} is a {side.kind}{count}"


def _only(ours: dict[str, Item], theirs: dict[str, Item]) -> list[Item]:
    return [item for key, item in ours.items() if key not in theirs]


def _one(items: dict[str, Item]) -> dict[str, Item]:
    """Of a tune that meets something else, what it came to."""
    for key in (FIXED_ITEM, BASELINE_ITEM):
        if key in items:
            return {key: items[key]}
    return items


def _alike(pair: Pair, base: str, other: str) -> None:
    a, b = pair.base.what, pair.other.what
    if a is not None and b is not None and a != b:
        raise UsageError(f"{base} is {_named(a)} and {other} {_named(b)}: they do not compare")


def _named(what: str) -> str:
    return {"batches": "a data loader alone", "training": "a training"}.get(what, f"an {what}")
