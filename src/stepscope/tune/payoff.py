"""When the time that compiling takes is made up for."""

from collections.abc import Sequence
from math import ceil
from statistics import median

from stepscope.tune.trial import Trial


def payoff(base: Sequence[Trial], other: Sequence[Trial]) -> tuple[float | None, int | None]:
    """Seconds of compiling that `other` has and `base` has not, and the steps that win them back.

    None, None where it compiles no longer; None steps where a step does not become shorter. Where
    batches differ, steps are those of `other`, against the time for as many samples.
    """
    extra = _compiling(other) - _compiling(base)
    if extra <= 0 or not base or not other:
        return None, None
    samples = [trial.samples_per_step for side in (base, other) for trial in side]
    per_step = 1.0
    if all(samples):
        ours, theirs = (median(t.samples_per_step or 1.0 for t in side) for side in (base, other))
        per_step = theirs / ours
    before, after = (sum(t.mean_ms for t in side) / len(side) for side in (base, other))
    saved_s = (before * per_step - after) / 1e3
    return extra, ceil(extra / saved_s) if saved_s > 0 else None


def _compiling(trials: Sequence[Trial]) -> float:
    return median([trial.compile_s or 0.0 for trial in trials] or [0.0])
