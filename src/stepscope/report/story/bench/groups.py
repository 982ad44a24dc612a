"""Points arranged for reading: what is compared with what, where a batch sweep flattens."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.bench.speed import knee_batch
from stepscope.report.text import format_number, safe

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """One model in one mode on one device: points that differ in batch and variant alone."""

    model: str
    mode: str
    device: str
    points: list[Document]

    @property
    def batches(self) -> list[int]:
        """In the order measured."""
        return list(dict.fromkeys(point["batch"] for point in self.points))

    @property
    def variants(self) -> list[str]:
        """In the order measured; the first is what the others are compared with."""
        return list(dict.fromkeys(point["variant"] for point in self.points))

    def at(self, batch: int) -> list[Document]:
        """Points of one batch."""
        return [point for point in self.points if point["batch"] == batch]

    def of(self, variant: str) -> list[Document]:
        """Points of one variant, by batch."""
        chosen = [point for point in self.points if point["variant"] == variant]
        return sorted(chosen, key=lambda point: point["batch"])


@dataclass(frozen=True, slots=True)
class Ablated:
    """One fix of an ablation; each point None where it was not measured or failed."""

    fix: str
    alone: Document | None
    added: Document | None
    """With this fix and those before it."""
    without: Document | None
    """With all but this one."""


def group_points(points: Sequence[Document]) -> list[Group]:
    """The groups, in the order measured."""
    found: dict[tuple[str, str, str], list[Document]] = {}
    for point in points:
        found.setdefault((point["model"], point["mode"], point["device"]), []).append(point)
    return [Group(*key, members) for key, members in found.items()]


def ablation_rows(points: Sequence[Document], fixes: Sequence[str]) -> list[Ablated]:
    """What each fix did alone, added to those before it, and left out of all."""
    by_set = {frozenset(point["fixes"]): point for point in points if point["status"] == "ok"}
    return [
        Ablated(
            fix=fix,
            alone=by_set.get(frozenset([fix])),
            added=by_set.get(frozenset(fixes[: number + 1])),
            without=by_set.get(frozenset(fixes) - {fix}),
        )
        for number, fix in enumerate(fixes)
    ]


def throughput(point: Document) -> float | None:
    """Samples a second, tokens a second in generation; None where it was not measured."""
    key = "tokens_per_s" if point["mode"] == "generate" else "samples_per_s"
    value: float | None = point.get(key)
    return value


def best_point(points: Sequence[Document]) -> Document | None:
    """The point whose speedup is largest among those that proved faster; None where none did."""
    proved = [
        point
        for point in points
        if point["status"] == "ok"
        and point.get("speedup")
        and point["speedup"]["verdict"] == "FASTER"
    ]
    return max(proved, key=lambda point: float(point["speedup"]["ratio"]), default=None)


def sweep_words(group: Group) -> list[str]:
    """A sentence for each variant that was measured at three batch sizes or more."""
    words = []
    for variant in group.variants:
        rates = {
            point["batch"]: rate
            for point in group.of(variant)
            if point["status"] == "ok" and (rate := throughput(point)) is not None
        }
        if len(rates) < 3:
            continue
        name = f"{safe(variant)}: " if len(group.variants) > 1 else ""
        largest = max(rates, key=lambda batch: rates[batch])
        unit = "tokens/s" if group.mode == "generate" else "samples/s"
        top = f"most at batch {largest:,}, {format_number(rates[largest])} {unit}"
        words.append(f"{name}{top}; {_knee_words(rates)}")
    return words


def _knee_words(rates: dict[int, float]) -> str:
    at = knee_batch(list(rates.items()))
    if at is None:
        return "still growing: no knee"
    share = rates[at] / max(rates.values())
    return f"the knee is at {at:,}, {share:.0%} of that: doubling again gains under 10%"
