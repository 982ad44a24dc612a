"""Statistics on paired losses, one row per seed and one column per step: divergence, learning pace,
and the tail.

Training is chaotic: the smallest change grows. What counts is whether the variant diverges further
than a control that was rounded once, in all seeds alike. A smaller learning rate, a dropped step or
different gradient clipping follows the same loss curve at another pace: paired differences are
compared with the shape that a slower pace would give them.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, exp, hypot, inf, sqrt
from typing import Final

import numpy as np

from stepscope.measure.trial.record import Trial, Trials
from stepscope.stats.intervals import student_t
from stepscope.stats.series import Floats
from stepscope.tune.proof.effects import RoundingLimits


@dataclass(frozen=True, slots=True)
class PairedLosses:
    """Losses of the same seeds in the same order, for the steps with losses in all of them. Base
    and control are finite; the variant's may be infinite or NaN."""

    seeds: tuple[int, ...]
    steps: tuple[int, ...]  # the step of each column, from 1
    made: int  # steps that both base and variant made, with or without a known loss
    base: Floats
    control: Floats | None  # None unless every seed has one
    variant: Floats


def pair_losses(base: Trials, control: Trials, variant: Trials) -> PairedLosses:
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
    return PairedLosses(seeds, steps, made, numbers[:, kept], check, other[:, kept])


def first_per_seed(trials: Trials, seeds: Sequence[int]) -> list[Trial]:
    """The first trial of each of these seeds, where there is one."""
    found = _first(trials)
    return [found[seed] for seed in seeds if seed in found]


def rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _table(trials: dict[int, Trial], seeds: Sequence[int], steps: int) -> Floats:
    rows = [trials[seed].losses[:steps] for seed in seeds]
    return np.array(rows, dtype=np.float64).reshape(len(seeds), steps)  # None becomes nan


def _first(trials: Trials) -> dict[int, Trial]:
    found: dict[int, Trial] = {}
    for trial in trials:
        if trial.ok:
            found.setdefault(trial.request.seed, trial)
    return found


_FEWEST_CURVE_STEPS: Final = 10  # steps
_FIRST: Final = 5  # steps between the first two knots: losses fall fastest at first
_PARTS: Final = 6  # the most distance between knots, as a share of all steps


@dataclass(frozen=True, slots=True)
class LossCurve:
    """A piecewise linear, non-increasing curve."""

    values: Floats  # one per step
    errors: Floats  # their standard errors

    def fall(self, steps: int) -> float:
        """How much the loss falls over the first steps, in standard errors."""
        error = hypot(float(self.errors[0]), float(self.errors[steps - 1]))
        fallen = float(self.values[0] - self.values[steps - 1])
        return fallen / error if error else (np.inf if fallen else 0.0)


def fit_curve(losses: Floats) -> LossCurve | None:
    """A loss curve fitted by least squares; None for too few steps."""
    steps = len(losses)
    if steps < _FEWEST_CURVE_STEPS:
        return None
    at = np.arange(steps, dtype=np.float64)
    places, apart = [0.0], float(_FIRST)
    widest = max(apart, (steps - 1) / _PARTS)
    while places[-1] + 1.5 * apart < steps - 1:
        places.append(places[-1] + apart)
        apart = min(2 * apart, widest)
    knots = np.array([*places, steps - 1.0])
    basis = np.stack([np.interp(at, knots, unit) for unit in np.eye(len(knots))], axis=1)
    inverse = np.linalg.pinv(basis.T @ basis)
    heights = inverse @ basis.T @ losses
    left = losses - basis @ heights
    spread = sqrt(float(left @ left) / (steps - len(knots)))
    errors = spread * np.sqrt(np.maximum(np.diag(inverse), 0.0))
    falling, errors = _never_rising(heights), np.asarray(np.interp(at, knots, errors))
    return LossCurve(np.interp(at, knots, falling), errors)


def _never_rising(values: Floats) -> Floats:
    """The nearest non-increasing series: rising neighbours are pooled."""
    means: list[float] = []
    counts: list[int] = []
    for value in values:
        means.append(float(value))
        counts.append(1)
        while len(means) > 1 and means[-2] < means[-1]:
            count = counts[-2] + counts[-1]
            means[-2] = (means[-2] * counts[-2] + means[-1] * counts[-1]) / count
            counts[-2] = count
            means.pop()
            counts.pop()
    return np.repeat(means, counts)


_BLOCK: Final = 5  # steps whose divergence is pooled
_FEWEST_SEEDS: Final = 5  # the worst of many blocks says little in fewer


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the variant diverges furthest beyond the control."""

    ratio: float  # its divergence over the control's: the geometric mean of seeds
    column: int  # the last of that block of steps
    spread: float  # the standard deviation between seeds, as a logarithm
    seeds: int

    def low(self, seeds: int, wider: float = 1.0) -> float:
        """The lower end of the ratio's interval, after so many seeds with this spread."""
        if seeds < _FEWEST_SEEDS:
            return 0.0
        return float(self.ratio * exp(-wider * student_t(seeds - 1) * self.spread / sqrt(seeds)))


def worst_divergence(
    base: Floats, control: Floats, variant: Floats, limit: RoundingLimits
) -> Divergence:
    """All are finite; the first step is judged separately."""
    floor = max(limit.floor * float(np.abs(base).mean()), np.finfo(np.float64).tiny)
    blocks = [slice(at, at + _BLOCK) for at in range(1, base.shape[1], _BLOCK)]
    shown = np.array([max(floor, rms((control - base)[:, block])) for block in blocks])
    # The geometric mean: one runaway seed or wild step is not a change in all.
    logs = np.log(np.abs(variant - base) + floor / 8)
    each = np.stack([logs[:, block].mean(axis=1) for block in blocks], axis=1)
    gone = np.exp(each.mean(axis=0))
    # A single rounding's effect fades as training settles; one in every step does not.
    ratios = gone / np.maximum.accumulate(shown)
    place = int(np.argmax(ratios))
    seeds = len(each)
    spread = float(each[:, place].std(ddof=1)) if seeds > 1 else inf
    column = min(base.shape[1] - 1, (place + 1) * _BLOCK)
    return Divergence(float(ratios[place]), column, spread, seeds)


@dataclass(frozen=True, slots=True)
class Difference:
    """Variant minus baseline, paired by seed, with a 95% interval."""

    value: float
    low: float
    high: float
    margin: float  # the largest difference that counts as none
    spread: float  # the standard deviation of one seed
    degrees: int  # of freedom, that one more seed adds: 2 with a control

    @property
    def within(self) -> bool:
        return -self.margin <= self.low and self.high <= self.margin

    @property
    def beyond(self) -> bool:
        return self.low > self.margin or self.high < -self.margin

    def seeds_needed(self, most: int, spread: float | None = None) -> int | None:
        """After how many seeds it should be within or beyond, if `spread` (of one seed; None: the
        measured one) stays; None: more than `most`. A difference that may be none is expected to
        shrink to a standard error."""
        spread = self.spread if spread is None else spread
        for seeds in range(2, most + 1):
            error = spread / sqrt(seeds)
            reach = LATER_LOOKS * student_t(self.degrees * seeds - 1) * error
            off = error if self.low <= 0 <= self.high else abs(self.value)
            if off + reach <= self.margin or off - reach > self.margin:
                return seeds
        return None


LATER_LOOKS: Final = 1.25
"""How much wider intervals are once a proof has been judged with fewer seeds before: seven looks
with these claim falsely about as often as one look without."""


def _difference(own: Floats, shown: Floats | None, wider: float, margin: float) -> Difference:
    """The mean over seeds and its interval, unbounded if the spread is unknown. The control's true
    mean is zero, so each of its seeds is a degree of freedom."""
    value = float(own.mean())
    squares, degrees = float(((own - value) ** 2).sum()), len(own) - 1
    if shown is not None:
        squares, degrees = squares + float((shown**2).sum()), degrees + len(shown)
    spread = sqrt(squares / degrees) if degrees else inf
    reach = wider * student_t(degrees) * spread / sqrt(len(own)) if degrees else inf
    degrees = 1 if shown is None else 2
    return Difference(value, value - reach, value + reach, margin, spread, degrees)


PACE_MARGIN: Final = 0.03  # of the pace: a third of the change from a learning rate times 0.9
_SHARES: Final = (1.0, 0.5, 0.25, 0.125)  # of the steps: early on, before chaos sets in
_PACE: Final = 0.1  # the change of pace behind the shape
_CLEAR: Final = 5.0  # standard errors the loss must fall by, so that noise is not taken for a shape


@dataclass(frozen=True, slots=True)
class LearningPace(Difference):
    """A change of the pace, as a share; -0.1: slower."""

    steps: int  # how many steps, from the first, it covers


def learning_paces(
    base: Floats, control: Floats | None, variant: Floats, wider: float = 1.0
) -> list[LearningPace]:
    """Over all steps and over the first ones only; empty if losses do not clearly fall. Rows are
    seeds, columns steps. Without a control only the seeds show the spread."""
    known = fit_curve(base.mean(axis=0))
    if known is None:
        return []
    total = base.shape[1]
    at = np.arange(total, dtype=np.float64)
    shape = (np.interp(at * (1 - _PACE), at, known.values) - known.values) / _PACE
    ends = sorted({max(_FEWEST_CURVE_STEPS, int(total * share)) for share in _SHARES}, reverse=True)
    found = []
    for end in (end for end in ends if known.fall(end) > _CLEAR):
        # The change of pace that explains each seed's differences; more loss: slower.
        explain = -shape[:end] / float(shape[:end] @ shape[:end])
        shown = None if control is None else (control - base)[:, :end] @ explain
        own = (variant - base)[:, :end] @ explain
        difference = _difference(own, shown, wider, PACE_MARGIN)
        found.append(LearningPace(**asdict(difference), steps=end))
    return found


def steps_for_trend(base: Floats) -> int | None:
    """In how many steps losses should clearly fall, if they go on as so far: the fall grows with
    the steps, and its error shrinks with their root. None: they do not fall."""
    steps, known = base.shape[1], fit_curve(base.mean(axis=0))
    fallen = 0.0 if known is None else known.fall(steps)
    return ceil(steps * (1.2 * _CLEAR / fallen) ** (2 / 3)) if fallen > 1 else None


def below_one_update(base: Floats, variant: Floats, update: float | None) -> bool:
    """Whether differences are too small throughout to hide a change of the updates. `update` is how
    much one update changes the loss of its own batch; in others it may be far less. None:
    unknown."""
    return update is not None and bool(np.abs(variant - base).max() < _PACE / 10 * update)


_SHARE: Final = 4  # the last quarter of the steps
_TIMES_CONTROL: Final = 4.0
_TIMES_SEEDS: Final = 0.5
_OF_FALL: Final = 0.002  # of the loss's fall: shares of a loss near zero are noise


def tail_difference(
    base: Floats,
    control: Floats | None,
    variant: Floats,
    limit: RoundingLimits,
    wider: float = 1.0,
) -> Difference:
    """The difference of the mean loss over the last steps. Rows are seeds, columns steps. The
    margin is a few times the control's, half the spread of seeds, or two thousandths of the loss's
    fall, whichever is largest."""
    length = max(1, base.shape[1] // _SHARE)
    start = base.shape[1] - length
    means = base[:, start:].mean(axis=1)
    fall = float(base[:, :length].mean() - means.mean())
    margin = max(limit.floor * float(np.abs(means).mean()), _OF_FALL * fall)
    if len(means) > 1:
        margin = max(margin, _TIMES_SEEDS * float(means.std(ddof=1)))
    shown = None
    if control is not None:
        shown = control[:, start:].mean(axis=1) - means
        margin = max(margin, _TIMES_CONTROL * rms(shown))
    return _difference(variant[:, start:].mean(axis=1) - means, shown, wider, margin)
