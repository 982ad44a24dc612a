"""Arranges points for reading: which to compare, and where a batch sweep flattens."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.bench.results import PointStatus, PointSummary, Speedup
from stepscope.record.units import format_number
from stepscope.stats.series import NEAR_BEST, knee_index

Points = Sequence[PointSummary]


@dataclass(frozen=True, slots=True)
class Group:
    """One model in one mode on one device: points that differ only in batch and variant."""

    model: str
    mode: str
    device: str
    points: list[PointSummary]

    @property
    def name(self) -> str:
        """`resnet18 · train · cuda`."""
        return f"{self.model} · {self.mode} · {self.device}"

    @property
    def batches(self) -> list[int]:
        """In the order measured."""
        return list(dict.fromkeys(point.batch for point in self.points))

    @property
    def variants(self) -> list[str]:
        """In the order measured; the first is the baseline for the others."""
        return list(dict.fromkeys(point.variant for point in self.points))

    def at(self, batch: int) -> list[PointSummary]:
        """Points of one batch."""
        return [point for point in self.points if point.batch == batch]

    def of(self, variant: str) -> list[PointSummary]:
        """Points of one variant, by batch."""
        chosen = [point for point in self.points if point.variant == variant]
        return sorted(chosen, key=lambda point: point.batch)


def measured(points: Points) -> list[PointSummary]:
    """Points that succeeded."""
    return [point for point in points if point.status is PointStatus.OK]


def group_points(points: Points) -> list[Group]:
    """The groups, in the order measured."""
    found: dict[tuple[str, str, str], list[PointSummary]] = {}
    for point in points:
        found.setdefault((point.model, point.mode, point.device), []).append(point)
    return [Group(*key, members) for key, members in found.items()]


def ablation_gains(points: Points, fixes: Sequence[str]) -> dict[str, list[Speedup | None]]:
    """The gain of each fix alone, added to those before it, and left out of all; None if not
    measured or failed."""
    by_set = {frozenset(point.fixes): point.speedup for point in measured(points)}
    return {
        "alone": [by_set.get(frozenset([fix])) for fix in fixes],
        "added": [by_set.get(frozenset(fixes[: at + 1])) for at in range(len(fixes))],
        "without it": [by_set.get(frozenset(fixes) - {fix}) for fix in fixes],
    }


def best_point(points: Points) -> PointSummary | None:
    """The point with the largest confirmed speedup, or None."""
    gains = ((point.speedup, point) for point in measured(points))
    proved = [(gain.ratio, point) for gain, point in gains if gain and gain.verdict == "FASTER"]
    return max(proved, key=lambda one: one[0])[1] if proved else None


def sweep_sentences(group: Group) -> list[str]:
    """One sentence per variant measured at three or more batch sizes."""
    sentences = []
    for variant in group.variants:
        points = [point for point in measured(group.of(variant)) if point.throughput]
        if len(points) < 3:
            continue
        name = f"{variant}: " if len(group.variants) > 1 else ""
        rates = [point.throughput or 0.0 for point in points]
        top = max(rates)
        most = points[rates.index(top)]
        text = f"{name}{format_number(top)} {most.throughput_unit} at batch {most.batch:,}"
        knee = points[knee_index(rates) or 0]
        if knee is points[-1]:
            text += "; throughput still grows"
        elif knee is not most:
            text += f"; batch {knee.batch:,} is within {NEAR_BEST:.0%} of that"
        sentences.append(f"{text}.")
    return sentences
