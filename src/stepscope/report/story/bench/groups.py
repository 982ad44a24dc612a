"""Points arranged for reading: what is compared with what, where a batch sweep flattens."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.bench.results import PointStatus, PointSummary
from stepscope.record.units import format_number
from stepscope.stats.knee import NEAR_BEST, knee_index

Points = Sequence[PointSummary]


@dataclass(frozen=True, slots=True)
class Group:
    """One model in one mode on one device: points that differ in batch and variant alone."""

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
        """In the order measured; the first is what the others are compared with."""
        return list(dict.fromkeys(point.variant for point in self.points))

    def at(self, batch: int) -> list[PointSummary]:
        """Points of one batch."""
        return [point for point in self.points if point.batch == batch]

    def of(self, variant: str) -> list[PointSummary]:
        """Points of one variant, by batch."""
        chosen = [point for point in self.points if point.variant == variant]
        return sorted(chosen, key=lambda point: point.batch)


@dataclass(frozen=True, slots=True)
class Ablated:
    """One fix of an ablation; each point None where it was not measured or failed."""

    fix: str
    alone: PointSummary | None
    added: PointSummary | None
    """With this fix and those before it."""
    without: PointSummary | None
    """With all but this one."""


def measured(points: Points) -> list[PointSummary]:
    """Those that worked."""
    return [point for point in points if point.status is PointStatus.OK]


def group_points(points: Points) -> list[Group]:
    """The groups, in the order measured."""
    found: dict[tuple[str, str, str], list[PointSummary]] = {}
    for point in points:
        found.setdefault((point.model, point.mode, point.device), []).append(point)
    return [Group(*key, members) for key, members in found.items()]


def ablation_rows(points: Points, fixes: Sequence[str]) -> list[Ablated]:
    """What each fix did alone, added to those before it, and left out of all."""
    by_set = {frozenset(point.fixes): point for point in measured(points)}
    return [
        Ablated(
            fix=fix,
            alone=by_set.get(frozenset([fix])),
            added=by_set.get(frozenset(fixes[: number + 1])),
            without=by_set.get(frozenset(fixes) - {fix}),
        )
        for number, fix in enumerate(fixes)
    ]


def best_point(points: Points) -> PointSummary | None:
    """The largest speedup among the points that proved faster; None where none did."""
    proved = [
        (point.speedup.ratio, place)
        for place, point in enumerate(points)
        if point.status is PointStatus.OK and point.speedup and point.speedup.verdict == "FASTER"
    ]
    return points[max(proved, key=lambda one: one[0])[1]] if proved else None


def sweep_sentences(group: Group) -> list[str]:
    """One for each variant measured at three batch sizes or more."""
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
