"""What of a trial is to become better, and whether it did.

Of every objective the smaller number is the better one, so FASTER stands for better throughout.
"""

from collections.abc import Sequence
from typing import Final

from stepscope.stats.intervals import Processes
from stepscope.stats.verdict import LEAST, Comparison, Verdict, compare, noise_floor, process_spread
from stepscope.tune.trial import Trial

Trials = Sequence[Trial]
SLOWER_AT_MOST: Final = 0.95
"""Of the speed: what a smaller peak of memory may cost."""


def compared(base: Trials, other: Trials, objective: str, floor: float | None) -> Comparison | None:
    """`other` against `base`, all of them ok; `floor` is `floor_of` them.

    None where a trial does not have what the objective looks at.
    """
    ours, theirs = costs(base, other, objective)
    if not ours or not theirs:
        return None
    return _extremes(ours, theirs) if objective == "memory" else compare(ours, theirs, floor)


def costs(base: Trials, other: Trials, objective: str) -> tuple[Processes, Processes]:
    """The numbers of each process: ms, joules, or bytes at the peak. Empty where not known.

    Times and energy are those of a sample where all trials know their samples, else of a step.
    """
    by_sample = all(trial.samples_per_step for trial in (*base, *other))
    ours, theirs = (
        [series for trial in side if (series := _series(trial, objective, by_sample))]
        for side in (base, other)
    )
    return ours, theirs


def floor_of(groups: Sequence[Trials], objective: str) -> float | None:
    """The noise between processes, from groups of trials of one set of fixes each."""
    return noise_floor(_each(groups, objective))


def spread_of(groups: Sequence[Trials], objective: str) -> float | None:
    """The standard deviation between processes, as a logarithm, from such groups."""
    return process_spread(_each(groups, objective))


def _each(groups: Sequence[Trials], objective: str) -> list[Processes]:
    """The numbers of each group; none of memory, whose peaks repeat."""
    return [] if objective == "memory" else [costs(group, (), objective)[0] for group in groups]


def keeps_speed(base: Trials, other: Trials) -> float | None:
    """The share of the speed that is left, where that is too little; None where it is not."""
    found = compared(base, other, "throughput", None)
    return found.ratio if found is not None and found.ratio < SLOWER_AT_MOST else None


def _series(trial: Trial, objective: str, by_sample: bool) -> list[float]:
    per = (trial.samples_per_step or 1.0) if by_sample else 1.0
    if objective == "throughput":
        return [ms / per for ms in trial.step_ms]
    if objective == "energy":
        return [trial.energy_j_per_step / per] if trial.energy_j_per_step else []
    return [trial.peak_memory_bytes] if trial.peak_memory_bytes else []


def _extremes(ours: Processes, theirs: Processes) -> Comparison:
    """Peaks of memory hardly vary: all that were seen are the interval."""
    a, b = ([series[0] for series in side] for side in (ours, theirs))
    low, high = min(a) / max(b), max(a) / min(b)
    ratio = (sum(a) / len(a)) / (sum(b) / len(b))
    same = low >= 1 / (1 + LEAST) and high <= 1 + LEAST
    verdict = (
        Verdict.FASTER
        if low > 1 + LEAST
        else Verdict.SLOWER
        if high < 1 / (1 + LEAST)
        else Verdict.SAME
        if same
        else Verdict.UNCLEAR
    )
    return Comparison(ratio, low, high, LEAST, verdict)
