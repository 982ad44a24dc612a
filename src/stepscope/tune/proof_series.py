"""Losses of trials side by side: a row a seed, a column a step."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.stats.series import Floats
from stepscope.tune.trial import Trial


@dataclass(frozen=True, slots=True)
class Sides:
    """Of the same seeds in the same order, for the steps whose losses all of them know.

    Base and control are finite numbers; the variant's may be infinite or none.
    """

    seeds: tuple[int, ...]
    steps: tuple[int, ...]
    """From 1: which step each column is."""
    made: int
    """Steps that both base and variant made, with a known loss or without."""
    base: Floats
    control: Floats | None
    """None where there is none for every seed."""
    variant: Floats


def sides(base: Sequence[Trial], control: Sequence[Trial], variant: Sequence[Trial]) -> Sides:
    """The first trial of each seed that both base and variant have."""
    ours, theirs, checks = _first(base), _first(variant), _first(control)
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    every = [side[seed] for side in (ours, theirs) for seed in seeds]
    made = min((len(trial.losses) for trial in every), default=0)
    checked = bool(seeds) and all(
        seed in checks and len(checks[seed].losses) >= made for seed in seeds
    )
    numbers, other = _table(ours, seeds, made), _table(theirs, seeds, made)
    shown = _table(checks, seeds, made) if checked else numbers
    missing = [any(trial.losses[step] is None for trial in every) for step in range(made)]
    kept = ~np.array(missing, bool) & (np.isfinite(numbers) & np.isfinite(shown)).all(axis=0)
    steps = tuple(int(step) + 1 for step in np.flatnonzero(kept))
    check = shown[:, kept] if checked else None
    return Sides(seeds, steps, made, numbers[:, kept], check, other[:, kept])


def of_seeds(trials: Sequence[Trial], seeds: Sequence[int]) -> list[Trial]:
    """The first trial of each of these seeds, where there is one."""
    found = _first(trials)
    return [found[seed] for seed in seeds if seed in found]


def rms(values: Floats) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(values**2)))


def _table(trials: dict[int, Trial], seeds: Sequence[int], steps: int) -> Floats:
    rows = [
        [np.nan if loss is None else loss for loss in trials[seed].losses[:steps]] for seed in seeds
    ]
    return np.array(rows, dtype=np.float64).reshape(len(seeds), steps)


def _first(trials: Sequence[Trial]) -> dict[int, Trial]:
    found: dict[int, Trial] = {}
    for trial in trials:
        if trial.ok:
            found.setdefault(trial.ask.seed, trial)
    return found
