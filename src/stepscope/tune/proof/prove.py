"""One proof, seed by seed, reusing trials already made. It stops early only to reject."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from msgspec.structs import replace as replace_fields

from stepscope.fixes.base import FixKind
from stepscope.measure.trial.final_state import FinalState
from stepscope.measure.trial.record import RunTrial, Trial, TrialRequest, Trials
from stepscope.record.kinds import EndPart
from stepscope.record.proof import Because, Proof, ProofReason, ProofState
from stepscope.record.trial import TrialStatus
from stepscope.tune.proof.effects import (
    changes_draws,
    coarsest_rounding,
    may_change_draws,
    observed_kind,
    same_batches,
)
from stepscope.tune.proof.final_states import FinalStates
from stepscope.tune.proof.judge import (
    Outputs,
    judge_exact,
    judge_numeric,
    judge_outputs,
    not_proven,
    training_changes,
)


class _ProofEnded(Exception):  # noqa: N818
    """A trial left nothing to compare; carries the resulting proof."""

    def __init__(self, proof: Proof, trial: Trial) -> None:
        super().__init__()
        self.proof = replace_fields(proof, trials=(trial.number,))


class _ReusedTrials:
    """Answers equal requests with known trials, and shorter ones with the first steps of the
    shortest sufficient trial: only a trial that ends there shows a final state."""

    def __init__(self, run: RunTrial, known: Trials) -> None:
        self._run = run
        self._known: dict[bytes, list[Trial]] = {}
        for trial in known:
            whatever_steps = replace_fields(trial.request, steps=0).key()
            self._known.setdefault(whatever_steps, []).append(trial)

    def __call__(self, request: TrialRequest) -> Trial:
        kept = self._known.get(replace_fields(request, steps=0).key(), [])
        enough = (one for one in kept if one.request.steps >= request.steps)
        trial = min(enough, key=lambda one: one.request.steps, default=None)
        if trial is None:
            return self._run(request)
        kept.remove(trial)
        steps = min(trial.steps, request.steps)
        proof = replace_fields(
            trial.proof,
            rates=trial.proof.rates[:steps],
            short_batches=tuple(step for step in trial.proof.short_batches if step <= steps),
            ending=trial.proof.ending and trial.steps <= steps,
        )
        losses = trial.losses[:steps]
        return replace_fields(trial, request=request, steps=steps, losses=losses, proof=proof)


@dataclass(frozen=True, slots=True)
class _Case:
    """The two sides of a proof. Its trials raise _ProofEnded if they fail."""

    trials: _ReusedTrials
    request: TrialRequest  # the baseline's, with seed 0
    fixes: tuple[str, ...]
    final_states: FinalStates
    wider: float = 1.0  # see `judge_numeric`

    def with_draws_per_batch(self) -> "_Case":
        """The same case with random draws that depend on each batch alone."""
        return replace(self, request=replace_fields(self.request, draws_per_batch=True))

    def base(self, seed: int = 0, perturb: str | None = None) -> Trial:
        trial = self.trials(replace_fields(self.request, seed=seed, perturb=perturb))
        if not trial.ok:
            raise _ProofEnded(not_proven(ProofReason.BASELINE_FAILED, detail=trial.failure), trial)
        return trial

    def variant(self, seed: int = 0) -> Trial:
        trial = self.trials(replace_fields(self.request, fixes=self.fixes, seed=seed))
        if trial.status is TrialStatus.NOT_APPLICABLE:
            raise _ProofEnded(not_proven(ProofReason.NOT_APPLICABLE, detail=trial.failure), trial)
        if not trial.ok:
            because = Because(ProofReason.VARIANT_FAILED, detail=trial.failure)
            raise _ProofEnded(Proof(ProofState.DIFFERS, because), trial)
        return trial


_MORE: Final = 2  # seeds without a control, when only seeds show the spread


def _prove_exact(case: _Case, first: Trial, other: Trial, seeds: int, own: str) -> Proof:
    """Two trials if bits agree; otherwise a third, which shows whether the baseline repeats."""
    ours, theirs, final_states = [first], [other], case.final_states
    proof = judge_exact(ours, theirs, own, final_states=final_states)
    if proof.state is not ProofState.UNCLEAR:
        return proof
    for seed in range(seeds):
        if seed:
            ours.append(case.base(seed))
            theirs.append(case.variant(seed))
        ours.append(case.base(seed))
        more = seed + 1 < seeds
        proof = judge_exact(
            ours, theirs, own, more=more, final_states=final_states, wider=case.wider
        )
        if proof.state in (ProofState.DIFFERS, ProofState.IDENTICAL):
            break
    return proof


def _prove_numeric(case: _Case, first: Trial, other: Trial, seeds: int, dtype: str) -> Proof:
    """The baseline, variant and control of each seed; two trials if bits agree. A variant that
    changes batches' random draws runs with draws per batch, so that steps can be paired; if its
    batches still differ, means are compared."""
    final_states = case.final_states.tensors_only()
    proof = judge_exact([first], [other], final_states=final_states)
    if proof.because is not None and proof.because.part in (EndPart.FILES, EndPart.OUTPUT):
        proof = judge_exact([first, case.base()], [other], final_states=final_states)
        if proof.state is ProofState.DIFFERS:
            return proof
    if proof.state is not ProofState.IDENTICAL and changes_draws(other):
        if seeds > 1 and not case.request.draws_per_batch:
            case = case.with_draws_per_batch()
            return _prove_numeric(case, case.base(), case.variant(), seeds, dtype)
        if seeds == 1 or not same_batches(first, other):
            return _by_means(case, [first], [other], seeds, dtype)
    if proof.state is not ProofState.IDENTICAL:
        proof = _paired(case, first, other, seeds, dtype)
    return replace_fields(proof, draws_per_batch=case.request.draws_per_batch)


def _paired(case: _Case, first: Trial, other: Trial, seeds: int, dtype: str) -> Proof:
    ours, theirs, checks = [first], [other], list[Trial]()
    for seed in range(seeds):
        if seed:
            ours.append(case.base(seed))
            theirs.append(case.variant(seed))
        checks.append(case.base(seed, perturb=dtype))
        more = seed + 1 < seeds
        ends = case.final_states
        proof = judge_numeric(
            ours, checks, theirs, dtype, more=more, final_states=ends, wider=case.wider
        )
        if proof.state is ProofState.DIFFERS:
            break
    if proof.state is not ProofState.DIFFERS or not may_change_draws(case.fixes):
        return proof
    means = _by_means(case, ours, theirs, seeds, dtype)
    # It is unknown whether the program draws random numbers, so agreement is not enough.
    if means.state is not ProofState.MATCHES:
        return means
    because = Because(ProofReason.OTHER_DRAWS)
    return replace_fields(means, state=ProofState.UNCLEAR, because=because, settle=None)


def _by_means(case: _Case, ours: list[Trial], theirs: list[Trial], seeds: int, dtype: str) -> Proof:
    """For other random draws: steps cannot be paired, so more seeds and no control. One seed
    suffices if the proof of a whole ladder follows."""
    ends, wider = case.final_states, case.wider
    judge = partial(judge_numeric, dtype=dtype, draws=True, final_states=ends, wider=wider)
    proof = judge(ours, (), theirs)
    for seed in range(len(ours), seeds + _MORE if seeds > 1 else 1):
        ours.append(case.base(seed))
        theirs.append(case.variant(seed))
        proof = judge(ours, (), theirs)
        if seed + 1 >= seeds and proof.state is ProofState.DIFFERS:
            break
    return proof


def _prove_outputs(
    case: _Case,
    first: Trial,
    other: Trial,
    outputs: Callable[[Trial], Outputs] | None,
    dtype: str,
    exact: bool,
) -> Proof:
    """Two trials, plus a control if outputs differ by more than the dtype explains, and for exact
    fixes a third trial if they print or save something else."""
    if outputs is None or not (first.proof.outputs and other.proof.outputs):
        return not_proven(ProofReason.NO_OUTPUTS)
    ours, theirs, used = outputs(first), outputs(other), [first.number, other.number]
    proof = judge_outputs(ours, theirs, dtype, exact=exact)
    if not exact and proof.state in (ProofState.UNCLEAR, ProofState.DIFFERS):
        check = case.base(perturb=dtype)
        used.append(check.number)
        if check.proof.outputs:
            proof = judge_outputs(ours, theirs, dtype, control=outputs(check))
    if exact and proof.state is ProofState.IDENTICAL:
        end = case.final_states.compare_exact([(first, other)], [])
        if end.because is not None:
            again = case.base()
            used.append(again.number)
            end = case.final_states.compare_exact([(first, other)], [(first, again)])
        state = proof.state if end.because is None else ProofState.DIFFERS
        proof = replace_fields(proof, state=state, because=end.because, ends=end.compared)
    return replace_fields(proof, trials=tuple(used))


SEEDS: Final = 3


def prove(
    run: RunTrial,
    fixes: Sequence[str],
    kind: str,
    *,
    steps: int,
    base_fixes: Sequence[str] = (),
    seeds: int = SEEDS,
    known: Trials = (),
    own: str = "float32",
    outputs: Callable[[Trial], Outputs] | None = None,
    final_states: Callable[[Trial], FinalState] | None = None,
    wider: float = 1.0,
) -> Proof:
    """Whether the program does the same with `fixes` as with `base_fixes` alone.

    `kind` is the least exact of the fixes; what trials report counts if it is less exact. `known`
    are earlier trials, reused for equal requests. `own` is the program's own coarsest arithmetic.
    `outputs` reads what an inference trial kept, `final_states` how any trial ended. `wider`: see
    `judge_numeric`.
    """
    changes = Proof(ProofState.CHANGES, changes=training_changes(fixes))
    if kind == FixKind.SEMANTIC:
        return changes
    request = TrialRequest(tuple(base_fixes), steps=steps, proof=True)
    repeated = [one for one in known if one.request.fixes == request.fixes]
    ends = FinalStates() if final_states is None else FinalStates(final_states, repeated)
    case = _Case(_ReusedTrials(run, known), request, tuple(fixes), ends, wider)
    if seeds > 1 and any(changes_draws(one) for one in known if one.request.fixes == case.fixes):
        case = case.with_draws_per_batch()
    dtype = coarsest_rounding((*fixes, *base_fixes), own)
    try:
        first, other = case.base(), case.variant()
        kind = max(kind, observed_kind(other), key=[*FixKind].index)
        if kind == FixKind.SEMANTIC:
            return changes
        exact = kind == FixKind.EXACT
        if first.what == "inference":
            return _prove_outputs(case, first, other, outputs, dtype, exact)
        if exact:
            return _prove_exact(case, first, other, seeds, own)
        return _prove_numeric(case, first, other, seeds, dtype)
    except _ProofEnded as ended:
        return ended.proof
