"""What another batch size does to training, in sentences."""

from collections.abc import Sequence
from math import ceil, sqrt

Optimizers = Sequence[tuple[str, float | None]]

_LAYERWISE = ("lamb", "lars")
_LINEAR = ("sgd", "muon", "lion", "asgd")


def training_words(
    before: int, after: int, samples: int | None, drop_last: bool, optimizers: Optimizers
) -> list[str]:
    """For a program that trains: updates, learning rate, schedule, losses. Empty where the batch
    stays. `samples` of an epoch, None if not known."""
    if before == after:
        return []
    return [
        _updates(before, after, samples, drop_last),
        *(_rate(name, lr, after / before) for name, lr in optimizers[:2]),
        _schedule(after / before),
        "Losses cannot be compared step by step: compare at equal numbers of samples, and judge"
        " by the validation score at the end.",
    ]


def updates_per_epoch(samples: int, batch: int, drop_last: bool) -> int:
    """How many batches an epoch makes."""
    return samples // batch if drop_last else ceil(samples / batch)


def _updates(before: int, after: int, samples: int | None, drop_last: bool) -> str:
    if samples is None:
        more = "fewer" if after > before else "more"
        factor = max(before, after) / min(before, after)
        return f"{factor:.3g} times {more} updates for the same data."
    was, now = (updates_per_epoch(samples, batch, drop_last) for batch in (before, after))
    words = f"{now:,} updates an epoch instead of {was:,}."
    lost = samples % after if drop_last else 0
    if lost > samples % before and lost > samples / 20:
        words += f" drop_last leaves out {lost:,} of {samples:,} samples an epoch."
    return words


def _rate(name: str, lr: float | None, factor: float) -> str:
    kind = name.lower()
    if any(word in kind for word in _LAYERWISE):
        return f"{name} is made for large batches: its usual rule is the square root."
    linear = kind in _LINEAR
    scaled = factor if linear else sqrt(factor)
    rule = "in proportion to the batch" if linear else "with the square root of the batch"
    start = f"{name}: scale the learning rate {rule}, ×{scaled:.3g}"
    if lr:
        start += f" ({lr:.4g} → {lr * scaled:.3g})"
    return start + (", after a warm-up." if factor > 1 else ".")


def _schedule(factor: float) -> str:
    way = f"divide by {factor:.3g}" if factor > 1 else f"multiply by {1 / factor:.3g}"
    return f"What the program counts in steps (schedules, limits) stays as it is: {way}."
