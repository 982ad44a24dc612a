"""Judges a variant: whether losses and the trials' final states are equal bit for bit or within
rounding, or an inference program's outputs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, isfinite, isnan
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from stepscope.fixes.registry import fix_named
from stepscope.measure.trial.record import ProofRecord, Trial, Trials
from stepscope.record.errors import BrokenRun
from stepscope.record.fix import TrainingChange
from stepscope.record.proof import Because, Proof, ProofReason, ProofState, Settlement
from stepscope.tune.proof.effects import RoundingLimits, early_limits, rounding_limits
from stepscope.tune.proof.final_states import EndComparison, FinalStates
from stepscope.tune.proof.first_steps import (
    check_first_loss,
    check_norms,
    first_other_rate,
    norm_shift,
    update_size,
)
from stepscope.tune.proof.loss_statistics import (
    LATER_LOOKS,
    PairedLosses,
    below_one_update,
    first_per_seed,
    learning_paces,
    pair_losses,
    steps_for_trend,
    tail_difference,
    worst_divergence,
)


def not_proven(reason: ProofReason, **more: Any) -> Proof:
    """A proof without a comparison; `more` are fields of `Because`."""
    return Proof(ProofState.NOT_PROVEN, Because(reason, **more))


def training_changes(fixes: Iterable[str]) -> tuple[TrainingChange, ...]:
    """What these fixes, as `--fix` takes them, change in training."""
    changes = [fix_named(fix.partition("=")[0]).training_change for fix in fixes]
    return tuple(change for change in changes if change is not None)


def _followed(steps_of: Callable[[ProofRecord], Sequence[int]]) -> Callable[[Trial], bool]:
    """Tests whether an event occurred after a step that another step followed."""
    return lambda trial: any(0 < step < trial.steps for step in steps_of(trial.proof))


EVENTS: Final[dict[str, Callable[[Trial], bool]]] = {
    "epoch end": _followed(lambda proof: proof.epochs),
    "short last batch": lambda trial: bool(trial.proof.short_batches),
    "train→eval→train": _followed(lambda proof: proof.evaluations),
    "scheduler step": lambda trial: len({*trial.proof.rates} - {None}) > 1,
    "save": _followed(lambda proof: proof.saves),
    "load": _followed(lambda proof: proof.loads),
}
"""By name: whether it happened in a trial and training went on."""


def coverage(trials: Trials) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Events that happened in all of these trials, and those that did not."""
    covered = tuple(name for name, had in EVENTS.items() if trials and all(map(had, trials)))
    return covered, tuple(name for name in EVENTS if name not in covered)


FEWEST_STEPS: Final = 12
FEWEST_SEEDS: Final = 3
_LONGER: Final = 1.5  # times the steps, at least: all trials are made anew
MOST_SEEDS, MOST_STEPS = 40, 4000
"""What needs more than either counts as undecidable."""
_KNOWN: Final = 0.9  # of the steps must have a loss


def judge_numeric(
    base: Trials,
    control: Trials,
    variant: Trials,
    dtype: str,
    *,
    draws: bool = False,
    more: bool = False,
    final_states: FinalStates | None = None,
    wider: float = 1.0,
) -> Proof:
    """Trials are paired by seed; `dtype` is the coarsest arithmetic, to which the control's weights
    were rounded. With `draws` random numbers differ too: means over steps and seeds are compared
    instead of steps, without a control. `more`: further seeds follow, so only gross differences
    count yet. `final_states` reads how trials ended. `wider`: the factor of every interval, more
    than 1 if it was judged before."""
    side = pair_losses(base, () if draws else control, variant)
    if not side.seeds:
        return not_proven(ProofReason.NO_SEED)
    if not side.steps:
        return not_proven(ProofReason.NO_LOSSES)
    if len(side.steps) < _KNOWN * side.made:
        return not_proven(ProofReason.FEW_LOSSES, count=len(side.steps), of=side.made)
    if side.made < FEWEST_STEPS:
        return not_proven(ProofReason.TOO_FEW_STEPS, count=side.made)
    ours, theirs = first_per_seed(base, side.seeds), first_per_seed(variant, side.seeds)
    checks = [] if side.control is None else first_per_seed(control, side.seeds)
    limit = early_limits(dtype) if more or len(side.seeds) == 1 else rounding_limits(dtype)
    numbers: dict[str, Any] = {"dtype": dtype}
    settle: Settlement | None = None
    reason = _unlike_runs(side, ours, theirs)
    if reason is None and draws:
        if size := norm_shift(ours, theirs):
            reason = Because(ProofReason.NORM_SHIFT, value=size)
    elif reason is None:
        reason = _unlike_losses(side, limit, numbers)
        norms = check_norms(ours, checks, theirs, limit) if reason is None else []
        if norms:
            numbers |= {"first_norm": norms[0].value, "first_norm_limit": norms[0].limit}
        for step, check in enumerate(norms, start=1):
            if check.failed and reason is None:
                reason = Because(ProofReason.NORM, step=step, value=check.value)
    state = ProofState.DIFFERS
    if reason is None:
        state, reason, settle = _judge_means(side, limit, update_size(ours), numbers, wider)
    end = EndComparison()
    if state is not ProofState.DIFFERS and not more and final_states is not None:
        end = final_states.compare_numeric(ours, checks, theirs, limit, dtype)
        if end.because is not None:
            state, reason = ProofState.DIFFERS, end.because
    used = [*ours, *theirs, *checks]
    proof = _proof(state, reason, side.made, len(side.seeds), used, [*ours, *theirs], end)
    settle = settle if proof.state is ProofState.UNCLEAR else None
    return replace(proof, numbers=numbers, by_means=draws, settle=settle)


def _proof(
    state: ProofState,
    because: Because | None,
    steps: int,
    seeds: int,
    used: Trials,
    compared: Trials,
    end: EndComparison,
) -> Proof:
    covered, missing = coverage(compared)
    return Proof(
        state,
        because,
        steps,
        seeds,
        covered=covered,
        not_covered=(*missing, *end.missing),
        ends=end.compared,
        trials=tuple(sorted({trial.number for trial in used})),
    )


def _unlike_runs(side: PairedLosses, base: Trials, variant: Trials) -> Because | None:
    """Another learning rate or length in some seed, or losses that are NaN."""
    for ours, theirs in zip(base, variant, strict=True):
        if step := first_other_rate(ours, theirs):
            return Because(ProofReason.OTHER_RATE, step=step)
        if found := _other_length(ours, theirs):
            return found
    gone = ~np.isfinite(side.variant).all(axis=0)
    step = int(side.steps[gone.argmax()])
    return Because(ProofReason.NAN, step=step) if gone.any() else None


def _other_length(base: Trial, variant: Trial) -> Because | None:
    ours, theirs = len(base.losses), len(variant.losses)
    if base.request.steps != variant.request.steps or ours == theirs:
        return None
    return Because(ProofReason.OTHER_LENGTH, count=theirs, of=ours)


def _unlike_losses(
    side: PairedLosses, limit: RoundingLimits, numbers: dict[str, Any]
) -> Because | None:
    if side.steps[0] == 1:
        first = check_first_loss(side.base, side.control, side.variant, limit)
        numbers |= {"first_loss": first.value, "first_loss_limit": first.limit}
        if first.failed:
            return Because(ProofReason.FIRST_LOSS, value=first.value)
    if side.control is None:
        return None
    found = worst_divergence(side.base, side.control, side.variant, limit)
    numbers |= {"divergence": found.ratio, "divergence_limit": limit.growth}
    if found.ratio <= limit.growth and found.low(found.seeds, LATER_LOOKS) <= limit.near:
        return None
    return Because(ProofReason.DIVERGED, step=int(side.steps[found.column]), value=found.ratio)


_Judged = tuple[ProofState, Because | None, Settlement | None]


def _judge_means(
    side: PairedLosses,
    limit: RoundingLimits,
    update: float | None,
    numbers: dict[str, Any],
    wider: float,
) -> _Judged:
    """The state; unless it `matches`, the reason; if it is unclear, what would settle it. Adds its
    evidence to `numbers`. `update`: see `below_one_update`."""

    def finite(value: float) -> float | None:
        return value if isfinite(value) else None

    end = tail_difference(side.base, side.control, side.variant, limit, wider)
    paces = learning_paces(side.base, side.control, side.variant, wider)
    best = min(paces, key=lambda one: one.high - one.low, default=None)
    numbers |= {"tail": end.value, "tail_low": finite(end.low), "tail_high": finite(end.high)}
    numbers["tail_margin"] = end.margin
    if best is not None:
        numbers |= {"pace": best.value, "pace_low": finite(best.low)}
        numbers |= {"pace_high": finite(best.high), "pace_steps": best.steps}
        numbers["pace_margin"] = best.margin
    if len(side.seeds) < 2:
        settle = Settlement(FEWEST_SEEDS, side.made)
        return ProofState.UNCLEAR, Because(ProofReason.ONE_SEED), settle
    for pace in paces:
        if pace.beyond:
            return ProofState.DIFFERS, Because(ProofReason.PACE, value=1 + pace.value), None
    if end.beyond:
        return ProofState.DIFFERS, Because(ProofReason.TAIL, value=end.value), None
    drift = None
    if side.control is not None:
        drift = worst_divergence(side.base, side.control, side.variant, limit)
    open_: list[tuple[Because, int | None]] = []  # with the seeds that should close it
    if not below_one_update(side.base, side.variant, update) and not any(
        pace.within for pace in paces
    ):
        if best is None:
            return ProofState.UNCLEAR, Because(ProofReason.NO_TREND), _more_steps(side)
        known_to = Because(ProofReason.UNCERTAIN_TREND, value=finite(max(-best.low, best.high)))
        open_.append((known_to, best.seeds_needed(MOST_SEEDS)))
    if not end.within:
        open_.append((Because(ProofReason.WIDE_TAIL), end.seeds_needed(MOST_SEEDS)))
    if drift is not None and drift.ratio > limit.near:
        step, enough = int(side.steps[drift.column]), range(len(side.seeds), MOST_SEEDS + 1)
        needed = next((n for n in enough if drift.low(n, LATER_LOOKS) > limit.near), None)
        drifts = Because(ProofReason.DRIFTS, step=step, value=drift.ratio)
        open_ = [(drifts, needed)]  # settles it whatever the means are
    if not open_:
        return ProofState.MATCHES, None, None
    needs = [seeds for _, seeds in open_ if seeds is not None]
    seeds = max(len(side.seeds) + 1, *needs) if len(needs) == len(open_) else None
    return ProofState.UNCLEAR, open_[0][0], Settlement(seeds, side.made, most_seeds=MOST_SEEDS)


def _more_steps(side: PairedLosses) -> Settlement:
    """Steps in which losses should fall clearly enough; without seeds if that is not in sight."""
    steps = steps_for_trend(side.base)
    if steps is None or steps > MOST_STEPS:
        return Settlement(None, side.made)
    enough = max(steps, ceil(_LONGER * side.made))
    return Settlement(max(FEWEST_SEEDS, len(side.seeds)), enough)


def judge_exact(
    base: Trials,
    variant: Trials,
    dtype: str = "float32",
    *,
    more: bool = False,
    final_states: FinalStates | None = None,
    wider: float = 1.0,
) -> Proof:
    """Compares every trial of the variant with the baseline's of its seed.

    If the baseline itself does not repeat bit for bit, as on a GPU that adds in any order, the
    variant is judged as a change of rounding (to `dtype`, the program's own), with the baseline's
    second trials as control; with one baseline trial per seed that stays open. Further arguments
    are those of `judge_numeric`; parts the baseline does not repeat are not compared.
    """
    ours, theirs = _by_seed(base), _by_seed(variant)
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        return not_proven(ProofReason.NO_SEED)
    if not any(loss is not None for trial in base for loss in trial.losses):
        return not_proven(ProofReason.NO_LOSSES)
    used = [trial for seed in seeds for trial in (*ours[seed], *theirs[seed])]
    pairs = [(ours[seed][0], trial) for seed in seeds for trial in theirs[seed]]
    steps = min(min(len(a.losses), len(b.losses)) for a, b in pairs)
    found = next((why for a, b in pairs if (why := _first_difference(a, b))), None)
    repeats = [(ours[seed][0], again) for seed in seeds for again in ours[seed][1:]]
    end = EndComparison()
    if found is None and final_states is not None:
        end = final_states.compare_exact(pairs, repeats)
        found = end.because
    if found is None:
        state = ProofState.IDENTICAL
    elif not repeats:
        state = ProofState.UNCLEAR
    elif found is end.because or all(_first_difference(a, b) is None for a, b in repeats):
        state = ProofState.DIFFERS
    else:
        first, again = [a for a, _ in repeats], [b for _, b in repeats]
        return judge_numeric(
            first, again, variant, dtype, more=more, final_states=final_states, wider=wider
        )
    proof = _proof(state, found, steps, len(seeds), used, used, end)
    settle = Settlement(FEWEST_SEEDS, steps) if state is ProofState.UNCLEAR else None
    return replace(proof, baseline_repeats=state is not ProofState.UNCLEAR, settle=settle)


def _first_difference(base: Trial, variant: Trial) -> Because | None:
    """The first difference between two trials of one seed, however small, or None."""
    if step := first_other_rate(base, variant):
        return Because(ProofReason.OTHER_RATE, step=step)
    for step, (ours, theirs) in enumerate(zip(base.losses, variant.losses, strict=False), start=1):
        both_nan = ours is not None and theirs is not None and isnan(ours) and isnan(theirs)
        if ours != theirs and not both_nan:
            return Because(ProofReason.OTHER_LOSS, step=step)
    return _other_length(base, variant)


def _by_seed(trials: Trials) -> dict[int, list[Trial]]:
    found: dict[int, list[Trial]] = {}
    for trial in trials:
        if trial.ok:
            found.setdefault(trial.request.seed, []).append(trial)
    return found


Outputs = Mapping[str, Any]
"""Arrays by name: `values_0`, … (some values of each call's output), `top1_0`, … (the index of
the largest along the last dimension)."""

_AGREE: Final = 0.98  # of top-1: nearly equal outputs may swap places
_TIMES: Final = 4.0  # times the control's error: rounding once is less than rounding everywhere
_FAR: Final = 4.0  # times the limit: rounding cannot explain it


def read_outputs(folder: Path) -> Outputs:
    """The outputs kept in this run folder. Raises BrokenRun."""
    path = folder / "outputs.npz"
    try:
        with np.load(path, allow_pickle=False) as kept:
            return {name: kept[name] for name in kept.files}
    except Exception as problem:  # zip, zlib and numpy's headers have errors of many kinds
        raise BrokenRun(f"{path}: outputs cannot be read ({problem})") from problem


def judge_outputs(
    base: Outputs,
    variant: Outputs,
    dtype: str,
    *,
    control: Outputs | None = None,
    exact: bool = False,
) -> Proof:
    """Judges the worst call's relative error, and top-1 agreement. `control` are outputs with
    weights rounded once: errors like theirs are allowed. `exact`: no other rounding is expected, so
    a single bit counts."""
    calls = [name for name in base if name.startswith("values_") and name in variant]
    if not calls:
        return not_proven(ProofReason.NO_OUTPUTS)
    proof = Proof(ProofState.MATCHES, steps=len(calls), seeds=1, of_outputs=True)
    if any(variant[name].shape != base[name].shape for name in base if name in variant):
        because = Because(ProofReason.OUTPUT_SHAPE)
        return replace(proof, state=ProofState.DIFFERS, because=because)
    if all(np.array_equal(base[name], variant[name], equal_nan=True) for name in calls):
        return replace(proof, state=ProofState.IDENTICAL)
    error = max(_error(base[name], variant[name]) for name in calls)
    tops = [name for name in base if name.startswith("top1_") and name in variant]
    same = [np.asarray(base[name] == variant[name]).ravel() for name in tops]
    agreement = float(np.concatenate(same).mean()) if tops else None
    shown = [_error(base[name], control[name]) for name in calls if control and name in control]
    limit = max([rounding_limits(dtype).first_norm, *(_TIMES * one for one in shown if one < 1)])
    numbers = {"output_error": error, "output_limit": limit, "top1": agreement, "dtype": dtype}
    proof = replace(proof, numbers=numbers)
    off = Because(ProofReason.OUTPUT_ERROR, value=error)
    if exact or not error <= _FAR * limit:
        return replace(proof, state=ProofState.DIFFERS, because=off)
    if error > limit:
        return replace(proof, state=ProofState.UNCLEAR, because=off)
    if agreement is not None and agreement < _AGREE:
        other = Because(ProofReason.TOP1, value=agreement)
        return replace(proof, state=ProofState.UNCLEAR, because=other)
    return proof


def _error(base: Any, variant: Any) -> float:
    """The norm of the difference over the baseline's norm; infinite if a value is NaN."""
    ours, theirs = np.asarray(base, np.float64), np.asarray(variant, np.float64)
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return float("inf")
    known = np.isfinite(ours)
    size = float(np.linalg.norm(ours[known]))
    gone = float(np.linalg.norm(theirs[known] - ours[known]))
    return gone / size if size else (0.0 if gone == 0 else float("inf"))
