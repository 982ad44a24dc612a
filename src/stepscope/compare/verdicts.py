"""The speed of each item, one side against the other."""

from dataclasses import dataclass
from math import exp, log
from statistics import NormalDist
from typing import Any, Final

from stepscope.compare.floors import Standing, Stored, standing
from stepscope.compare.sides import Item
from stepscope.stats.intervals import Processes, log_means
from stepscope.stats.verdict import compare, verdict_of

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


def judged(pair: Pair, stored: Stored, recorded: bool, pairs: int = 1) -> dict[str, Any]:
    """The verdict on a pair. `change` is that of the time of a step, or of a sample, as a share.

    Of several pairs each interval is so wide that all hold together 19 times of 20, by the normal
    distribution. `recorded`: times come from traces.
    """
    base, other = _times(pair.base, pair), _times(pair.other, pair)
    stands = standing(base, other, stored(pair.base), recorded)
    found = compare(base, other, stands.share)
    wider = NormalDist().inv_cdf(1 - _TAIL / pairs) / NormalDist().inv_cdf(1 - _TAIL)
    reach = log(found.high / found.ratio) * wider
    low, high = found.ratio * exp(-reach), found.ratio * exp(reach)
    return {
        "key": pair.base.key,
        "label": pair.base.label,
        "verdict": verdict_of(low, high, found.floor).name,
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


def _floor(stands: Standing, base: Processes, other: Processes) -> dict[str, Any]:
    return {
        "base_processes": len(base),
        "other_processes": len(other),
        "base_steps": sum(map(len, base)),
        "other_steps": sum(map(len, other)),
        "noise_floor": stands.share,
        "noise_floor_from": stands.source,
    }


def overall(items: list[dict[str, Any]]) -> dict[str, Any]:
    """The item that speaks for all: the worst of the slower, else unclear, else faster ones."""
    for verdict in ("SLOWER", "UNCLEAR", "FASTER", "SAME"):
        chosen = [item for item in items if item["verdict"] == verdict]
        if chosen:
            far = min if verdict == "FASTER" else max
            return far(chosen, key=lambda item: float(item["change"]))
    raise ValueError("nothing to compare")
