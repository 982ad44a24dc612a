"""The first steps: loss, norms of gradients and learning rates, before differences have grown."""

from dataclasses import dataclass
from math import expm1, log1p, sqrt
from typing import Final

import numpy as np

from stepscope.measure.trial.record import Trial, Trials
from stepscope.stats.intervals import student_t
from stepscope.stats.series import Floats
from stepscope.tune.proof.effects import RoundingLimits
from stepscope.tune.proof.loss_statistics import rms

_TIMES: Final = 8.0  # times the control's: rounding once is less than rounding everywhere
_NORM_MARGIN: Final = 0.25
_RATES: Final = 2.0**-22  # as a share: a fix may keep the learning rate in float32


@dataclass(frozen=True, slots=True)
class FirstStepCheck:
    """A relative difference in the first steps, and its limit."""

    value: float
    limit: float

    @property
    def failed(self) -> bool:
        return not self.value <= self.limit


def check_first_loss(
    base: Floats, control: Floats | None, variant: Floats, limit: RoundingLimits
) -> FirstStepCheck:
    """The median difference over seeds; the limit is the dtype's, or more if the control needs
    it."""
    size = np.maximum(np.abs(base[:, 0]), np.finfo(np.float64).tiny)
    shown = 0.0 if control is None else rms((control[:, 0] - base[:, 0]) / size)
    value = float(np.median(np.abs(variant[:, 0] - base[:, 0]) / size))
    return FirstStepCheck(value, max(limit.first_loss, _TIMES * shown))


def check_norms(
    base: Trials, control: Trials, variant: Trials, limit: RoundingLimits
) -> list[FirstStepCheck]:
    """One check for each first step whose gradient norm is known in all trials. Trials have the
    same seeds in the same order; `control` may be empty."""
    ours, theirs, checks = (_norms(side) for side in (base, variant, control))
    found: list[FirstStepCheck] = []
    shown = 0.0
    for step in range(min(ours.shape[1], theirs.shape[1])):
        size = np.maximum(ours[:, step], np.finfo(np.float64).tiny)
        if step < checks.shape[1]:
            shown = max(shown, rms((checks[:, step] - ours[:, step]) / size))
        value = float(np.median(np.abs(theirs[:, step] - ours[:, step]) / size))
        found.append(FirstStepCheck(value, max(limit.first_norm, _TIMES * shown)))
    return found


def norm_shift(base: Trials, variant: Trials) -> float | None:
    """How much the variant's gradients clearly differ in size, as a share, if batches differ and
    only seeds show the spread; None: not clearly by a quarter."""
    ours, theirs = _norms(base), _norms(variant)
    steps = min(ours.shape[1], theirs.shape[1])
    if steps == 0 or len(ours) < 2 or not (ours > 0).all() or not (theirs > 0).all():
        return None
    logs = np.log(theirs[:, :steps] / ours[:, :steps]).mean(axis=1)
    middle = float(logs.mean())
    reach = student_t(len(logs) - 1) * float(logs.std(ddof=1)) / sqrt(len(logs))
    return expm1(middle) if abs(middle) - reach > log1p(_NORM_MARGIN) else None


def first_other_rate(base: Trial, variant: Trial) -> int | None:
    """The first step, from 1, with another learning rate, or None."""
    pairs = zip(base.proof.rates, variant.proof.rates, strict=False)
    for step, (ours, theirs) in enumerate(pairs, start=1):
        if ours is None or theirs is None:
            continue
        if abs(theirs - ours) > _RATES * abs(ours):
            return step
    return None


def update_size(base: Trials) -> float | None:
    """The least an update changes the loss of its batch; None: unknown. The highest rate times the
    gradient's squared norm (plain descent) or its norm (steps of a fixed size), whichever is
    less."""
    rates = [rate for trial in base for rate in trial.proof.rates if rate is not None]
    known = _norms(base)
    if not rates or not known.size:
        return None
    norm = float(np.median(known))
    return float(max(rates) * min(norm, norm**2))


def _norms(trials: Trials) -> Floats:
    """Gradient norms of the first steps where all trials have a finite one: an overflow under loss
    scaling has none and skips its step, which losses show."""
    rows = [trial.proof.grad_norms for trial in trials]
    steps = min((len(row) for row in rows), default=0)
    table = np.array([row[:steps] for row in rows], dtype=np.float64).reshape(len(rows), steps)
    unknown = ~np.isfinite(table).all(axis=0)
    return table[:, : int(unknown.argmax())] if unknown.any() else table
