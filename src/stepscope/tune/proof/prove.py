"""One proof, seed by seed: the trials it needs, those already made first. It stops early only to
reject.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stepscope.fixes.base import FixKind
from stepscope.measure.trial import RunTrial, Trial, TrialRequest
from stepscope.tune.proof.effects import (
    changes_draws,
    coarsest_rounding,
    may_change_draws,
    observed_kind,
    same_batches,
)
from stepscope.tune.proof.judge import Outputs, judge_exact, judge_numeric, judge_outputs
from stepscope.tune.proof.result import (
    DIFFERS,
    IDENTICAL,
    MATCHES,
    UNCLEAR,
    Proof,
    changes_training,
    not_proven,
    over_steps,
)


class _ProofEnded(Exception):  # noqa: N818
    """A trial that leaves nothing to compare: what is to be said of it."""

    def __init__(self, proof: Proof, trial: Trial) -> None:
        super().__init__(proof.words)
        self.proof = replace(proof, trials=(trial.number,))


class _ReusedTrials:
    """A `Run` that uses known trials in place of equal asks, and the first steps of longer ones."""

    def __init__(self, run: RunTrial, known: Sequence[Trial]) -> None:
        self._run = run
        self._known: dict[str, list[Trial]] = {}
        for trial in known:
            self._known.setdefault(_whatever_steps(trial.ask), []).append(trial)

    def __call__(self, ask: TrialRequest) -> Trial:
        kept = self._known.get(_whatever_steps(ask), [])
        for trial in kept:
            if trial.ask.steps >= ask.steps:
                kept.remove(trial)
                return _cut(trial, ask)
        return self._run(ask)


def _whatever_steps(ask: TrialRequest) -> str:
    return replace(ask, steps=0).key()


def _cut(trial: Trial, ask: TrialRequest) -> Trial:
    """As far as the ask goes."""
    steps = min(trial.steps, ask.steps)
    proof = dict(trial.proof)
    if proof.get("rates"):
        proof["rates"] = proof["rates"][:steps]
    if proof.get("short_batches"):
        proof["short_batches"] = [step for step in proof["short_batches"] if step <= steps]
    return replace(trial, ask=ask, steps=steps, losses=trial.losses[:steps], proof=proof)


@dataclass(frozen=True, slots=True)
class _Case:
    """What is proven against what. Its trials raise Ended where they fail."""

    trials: _ReusedTrials
    ask: TrialRequest
    """The baseline's, with seed 0."""
    fixes: tuple[str, ...]

    def held(self) -> "_Case":
        """The same with random draws that follow from each batch."""
        return replace(self, ask=replace(self.ask, held=True))

    def base(self, seed: int = 0, perturb: str | None = None) -> Trial:
        trial = self.trials(replace(self.ask, seed=seed, perturb=perturb))
        if not trial.ok:
            why = f"the baseline ended with {trial.why or trial.status}"
            raise _ProofEnded(not_proven(why), trial)
        return trial

    def variant(self, seed: int = 0) -> Trial:
        trial = self.trials(replace(self.ask, fixes=self.fixes, seed=seed))
        why = trial.why or trial.status
        if trial.status == "not_applicable":
            raise _ProofEnded(not_proven(why), trial)
        if not trial.ok:
            words = f"differs: the program does not end well with it: {why}"
            raise _ProofEnded(Proof(DIFFERS, words), trial)
        return trial


_MORE: Final = 2  # seeds where there is no control, and only seeds tell the spread
_HELD: Final = "(each batch's random draws held)"


def _prove_exact(case: _Case, first: Trial, other: Trial, seeds: int, own: str) -> Proof:
    """Two trials where bits agree; a third where not, which shows whether the baseline repeats."""
    ours, theirs = [first], [other]
    proof = judge_exact(ours, theirs, own)
    if proof.state != UNCLEAR:
        return proof
    for seed in range(seeds):
        if seed:
            ours.append(case.base(seed))
            theirs.append(case.variant(seed))
        ours.append(case.base(seed))
        proof = judge_exact(ours, theirs, own, more=seed + 1 < seeds)
        if proof.state == DIFFERS:
            break
    return proof


def _prove_numeric(case: _Case, first: Trial, other: Trial, seeds: int, dtype: str) -> Proof:
    """The baseline, the variant and the control of each seed; two trials where bits agree.

    What makes other random draws for its batches is run with draws held to them, so that steps can
    be paired; where its batches differ even so, means must do.
    """
    proof = judge_exact([first], [other])
    if proof.state != IDENTICAL and changes_draws(other):
        if seeds > 1 and not case.ask.held:
            case = case.held()
            return _prove_numeric(case, case.base(), case.variant(), seeds, dtype)
        if seeds == 1 or not same_batches(first, other):
            return _by_means(case, [first], [other], seeds, dtype)
    if proof.state != IDENTICAL:
        proof = _paired(case, first, other, seeds, dtype)
    return replace(proof, words=f"{proof.words} {_HELD}") if case.ask.held else proof


def _paired(case: _Case, first: Trial, other: Trial, seeds: int, dtype: str) -> Proof:
    ours, theirs, checks = [first], [other], list[Trial]()
    for seed in range(seeds):
        if seed:
            ours.append(case.base(seed))
            theirs.append(case.variant(seed))
        checks.append(case.base(seed, perturb=dtype))
        proof = judge_numeric(ours, checks, theirs, dtype, more=seed + 1 < seeds)
        if proof.state == DIFFERS:
            break
    if proof.state != DIFFERS or not may_change_draws(case.fixes):
        return proof
    means = _by_means(case, ours, theirs, seeds, dtype)
    # Nobody said that the program draws random numbers: agreement is not enough then.
    why = "steps part as with other random draws, their means do not"
    words = f"unclear {over_steps(means.steps, means.seeds)}: {why}"
    return replace(means, state=UNCLEAR, words=words) if means.state == MATCHES else means


def _by_means(case: _Case, ours: list[Trial], theirs: list[Trial], seeds: int, dtype: str) -> Proof:
    """Of what draws other random numbers: no step can be paired, so more seeds and no control.

    One seed only is asked for where the proof of a whole ladder is still to come.
    """
    proof = judge_numeric(ours, (), theirs, dtype, draws=True)
    for seed in range(len(ours), seeds + _MORE if seeds > 1 else 1):
        ours.append(case.base(seed))
        theirs.append(case.variant(seed))
        proof = judge_numeric(ours, (), theirs, dtype, draws=True)
        if seed + 1 >= seeds and proof.state == DIFFERS:
            break
    return proof


def _prove_outputs(
    case: _Case,
    first: Trial,
    other: Trial,
    outputs: Callable[[Trial], Outputs],
    dtype: str,
    *,
    exact: bool,
) -> Proof:
    """Two trials; a control where outputs are further apart than the dtype alone explains."""
    ours, theirs, used = outputs(first), outputs(other), [first.number, other.number]
    proof = judge_outputs(ours, theirs, dtype, exact=exact)
    if not exact and proof.state in (UNCLEAR, DIFFERS):
        check = case.base(perturb=dtype)
        used.append(check.number)
        if check.proof.get("outputs"):
            proof = judge_outputs(ours, theirs, dtype, control=outputs(check))
    return replace(proof, trials=tuple(used))


SEEDS: Final = 3


def prove(
    run: RunTrial,
    fixes: Sequence[str],
    kind: str,
    *,
    steps: int,
    base_fixes: Sequence[str] = (),
    seeds: int = SEEDS,
    known: Sequence[Trial] = (),
    own: str = "float32",
    outputs: Callable[[Trial], Outputs] | None = None,
) -> Proof:
    """Whether the program with `fixes` does what it does with `base_fixes` alone.

    `kind` is the least exact of the fixes; what the trials say of themselves counts if it is less
    so. `known` are trials made before, used in place of equal asks. `own` is the coarsest
    arithmetic of the program itself. `outputs` reads what an inference trial kept.
    """
    if kind == FixKind.SEMANTIC:
        return changes_training(fixes)
    ask = TrialRequest(tuple(base_fixes), steps=steps, proof=True)
    case = _Case(_ReusedTrials(run, known), ask, tuple(fixes))
    if seeds > 1 and any(map(changes_draws, (one for one in known if one.ask.fixes == case.fixes))):
        case = case.held()
    dtype = coarsest_rounding((*fixes, *base_fixes), own)
    try:
        first, other = case.base(), case.variant()
        kind = max(kind, observed_kind(other), key=[*FixKind].index)
        if kind == FixKind.SEMANTIC:
            return changes_training(fixes)
        exact = kind == FixKind.EXACT
        if first.what == "inference":
            if outputs is None or not all(one.proof.get("outputs") for one in (first, other)):
                return not_proven("outputs were not kept")
            return _prove_outputs(case, first, other, outputs, dtype, exact=exact)
        if exact:
            return _prove_exact(case, first, other, seeds, own)
        return _prove_numeric(case, first, other, seeds, dtype)
    except _ProofEnded as ended:
        return ended.proof
