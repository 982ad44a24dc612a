"""The proofs of a tune: each new rung, and the whole ladder at the end, with as many steps and
seeds as the budget allows."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from stepscope.measure.trial.final_state import FinalState, read_final_state
from stepscope.measure.trial.pool import (
    CONFIRM_PAIRS,
    FEWEST_CONFIRM_PAIRS,
    Budget,
    BudgetSpent,
    Fixes,
    TrialPool,
)
from stepscope.measure.trial.record import ROUNDING_DTYPES, Trial, TrialRequest, Trials
from stepscope.record.proof import Proof, ProofReason, ProofState, Settlement
from stepscope.record.trial import Rejection, RejectReason
from stepscope.tune.proof.effects import changes_draws, coarsest_rounding
from stepscope.tune.proof.judge import FEWEST_SEEDS, not_proven, read_outputs
from stepscope.tune.proof.loss_statistics import LATER_LOOKS
from stepscope.tune.proof.prove import prove
from stepscope.tune.request import TuneRequest
from stepscope.tune.search.candidates import Rejected
from stepscope.tune.search.ladder import Ladder, Rung

FEWEST: Final = 30
USUAL: Final = 100
_MOST: Final = 400  # if no epoch end is in reach, more steps show nothing new
_BEYOND: Final = 20  # steps of the second epoch
PER_SEED: Final = 3  # trials: baseline, control and variant


def proof_seeds(baseline: Trial, budget_s: float, seeds: int) -> int:
    """`seeds`, or fewer if the budget does not allow the fewest steps of each; at least one."""
    step_s, start_s = _costs(baseline)
    return max(1, min(seeds, int(budget_s / PER_SEED / (start_s + FEWEST * step_s))))


def proof_steps(baseline: Trial, epoch: int | None, budget_s: float, seeds: int) -> int:
    """Steps past the first epoch's end if the budget allows, else as many as it does; at least 30.
    `epoch` is its number of steps, None if unknown; `budget_s` is for all trials."""
    step_s, start_s = _costs(baseline)
    affordable = int((budget_s / seeds / PER_SEED - start_s) / step_s)
    wanted = max(USUAL, epoch + _BEYOND) if epoch else _MOST
    return wanted if wanted <= affordable else max(FEWEST, min(affordable, _MOST))


def _costs(baseline: Trial) -> tuple[float, float]:
    """Seconds per step, and of everything outside steps."""
    steps = max(1, baseline.steps)
    step_s = baseline.mean_ms / 1e3 if baseline.step_ms else baseline.seconds / steps
    return max(step_s, 1e-6), max(0.0, baseline.seconds - steps * step_s)


@dataclass(slots=True)
class Prover:
    """Makes a tune's proofs; knows every trial they may rest on."""

    budget: Budget
    pool: TrialPool
    request: TuneRequest
    folder_of: Callable[[int], Path]
    own: str  # the program's coarsest arithmetic
    epoch: int | None  # its steps; None: unknown
    grant_s: float | None = None
    """Seconds to go on with an unclear proof of the ladder, beside the budget; None: no more than
    that."""
    latest: Proof | None = None
    """The ladder's proof so far, should an interrupt end it."""
    _settling: bool = False
    _made: list[Trial] = field(default_factory=list)  # trials besides those of the search
    _before: int | None = None  # how many of them were made during the search
    _final_states: dict[int, FinalState] = field(default_factory=dict)

    def rung(self, fixes: Fixes, kind: str, trials: Trials) -> Proof:
        """A proof with one seed, reusing trials made for speed where possible: it may reject."""
        try:
            return self._prove(fixes, kind, self.pool.request.steps, 1, trials)
        except BudgetSpent:
            settle = Settlement(FEWEST_SEEDS, self.pool.request.steps)
            return replace(not_proven(ProofReason.NO_BUDGET), settle=settle)

    def ladder(self, fixes: Fixes, kind: str) -> Proof:
        """A proof with all seeds, and steps past the first epoch's end, as far as the budget
        allows; if these leave it unclear, with what should settle it."""
        proof = self._first(fixes, kind)
        if self.grant_s is not None:
            self.budget.seconds, self.grant_s = self.budget.spent + self.grant_s, None
            self._settling = True
        while proof.settle is not None:
            proof = self.latest = self._priced(proof, fixes)
            seeds, steps = self._next(proof, fixes, kind)
            if not seeds:
                break
            wider = LATER_LOOKS if proof.seeds > 1 else 1.0
            trials, before = self.pool.trials(fixes), (proof.seeds, proof.steps)
            try:
                proof = self._prove(fixes, kind, steps, seeds, trials, wider)
            except BudgetSpent:
                return replace(proof, budget_exhausted=True)
            if proof.settle is not None and (proof.seeds, proof.steps) == before:
                proof = replace(proof, settle=replace(proof.settle, seeds=None))  # it ends there
        return proof

    def _next(self, proof: Proof, fixes: Fixes, kind: str) -> tuple[int, int]:
        """Seeds and steps of the next attempt at an unclear proof; no seeds if it would not be
        settled within the budget. A proof that was asked for is taken as far as the budget goes."""
        settle, left = proof.settle, self.budget.left
        if settle is None or settle.seeds is None:
            return 0, 0
        if not self._confirms(fixes, kind, settle.steps, settle.seeds):
            left -= self._confirming_s(fixes)
        wanted = min(settle.seeds, 2 * max(proof.seeds, FEWEST_SEEDS))
        if settle.seconds is None or settle.seconds <= left:
            return wanted, settle.steps
        new = settle.seeds - (proof.seeds if settle.steps <= proof.steps else 0)
        fitting = int(left / (settle.seconds / new)) if self._settling else 0
        seeds = min(wanted, settle.seeds - new + fitting)
        return (seeds, settle.steps) if fitting and seeds > 1 else (0, 0)

    def _priced(self, proof: Proof, fixes: Fixes) -> Proof:
        """With the trials that should settle it, and what they would take."""
        settle = proof.settle
        if settle is None or settle.seeds is None:
            return proof
        step_s, start_s = _costs(self.pool.trials(())[0])
        known = self._known(self.pool.trials(fixes))
        used = [one for one in known if one.number in proof.trials]
        per_seed = max(2.0, len(used) / proof.seeds) if proof.seeds else PER_SEED
        longer = settle.steps > proof.steps
        trials = ceil((settle.seeds - (0 if longer else proof.seeds)) * per_seed)
        each_s = start_s + settle.steps * step_s
        if used and not longer:
            each_s = sum(one.seconds for one in used) / len(used)
        return replace(proof, settle=replace(settle, trials=trials, seconds=trials * each_s))

    def _first(self, fixes: Fixes, kind: str) -> Proof:
        if self._before is None:
            self._before = len(self._made)
        pool, wanted = self.pool, self.request.seeds
        later_s = wanted * max(0.0, pool.cost_s(fixes) - pool.cost_s(()))  # compile time
        steps, seeds = self._extent(later_s)
        if not self._confirms(fixes, kind, steps, seeds):
            steps, seeds = self._extent(later_s + pool.confirming_s(fixes))
        steps = self._where_trials_ended(fixes, kind, steps)
        for count in range(seeds, 1, -1):
            with suppress(BudgetSpent):  # then with fewer, from the trials made
                proof = self._prove(fixes, kind, steps, count, pool.trials(fixes))
                unclear = proof.state is ProofState.UNCLEAR
                return replace(proof, budget_exhausted=unclear and count < wanted)
        proof = self.rung(fixes, kind, pool.trials(fixes))
        return replace(proof, budget_exhausted=proof.state is ProofState.UNCLEAR)

    def fresh(self, fixes: Fixes) -> list[Trial]:
        """Trials with these fixes and of the baseline, made alternately since the search ended,
        that measure speed."""
        return [
            one
            for one in self._made[self._before :]
            if one.step_ms
            and one.request.fixes in ((), fixes)
            and not (one.request.perturb or one.request.draws_per_batch)
            and one.steps >= self.pool.steps_of(fixes)
        ]

    def _where_trials_ended(self, fixes: Fixes, kind: str, steps: int) -> int:
        """As many steps as existing trials with the fixes made, if enough: only there is their
        ending known. Not for fixes that need further seeds, nor if the budget does not allow a
        baseline trial that long."""
        made = [one.request.steps for one in self.pool.trials(fixes) if one.proof.ending]
        count = min((one for one in made if one >= steps), default=steps)
        step_s, start_s = _costs(self.pool.trials(())[0])
        fits = start_s + count * step_s <= self.budget.left - self.pool.confirming_s(fixes)
        return count if kind == "exact" and fits else steps

    def _extent(self, later_s: float) -> tuple[int, int]:
        """Steps and seeds, with `later_s` of the budget kept for other work."""
        base, left = self.pool.trials(())[0], self.budget.left - later_s
        seeds = proof_seeds(base, left, self.request.seeds)
        return proof_steps(base, self.epoch, left, seeds), seeds

    def _confirms(self, fixes: Fixes, kind: str, steps: int, seeds: int) -> bool:
        """Whether the proof will make all trials that a confirmation needs."""
        paired = kind == "numeric" and self.pool.trials(())[0].what != "inference"
        paired = paired and not any(map(changes_draws, self.pool.trials(fixes)))
        return paired and seeds >= CONFIRM_PAIRS and steps > self.pool.steps_of(fixes)

    def _confirming_s(self, fixes: Fixes) -> float:
        """Seconds for the pairs that a confirmation still lacks; 0 during the search."""
        pairs = FEWEST_CONFIRM_PAIRS - len(self.fresh(fixes)) // 2
        return 0.0 if self._before is None else self.pool.confirming_s(fixes, max(0, pairs))

    def _known(self, trials: Trials) -> list[Trial]:
        return [*self.pool.trials(()), *trials, *self._made]

    def _prove(
        self,
        fixes: Fixes,
        kind: str,
        steps: int,
        seeds: int,
        trials: Trials,
        wider: float = 1.0,
    ) -> Proof:
        """Raises BudgetSpent if a trial does not fit in the budget, with enough kept to confirm."""
        step_s = _costs(self.pool.trials(())[0])[0]

        def run(request: TrialRequest) -> Trial:
            keep_s = self._confirming_s(fixes)
            longer = max(0, request.steps - self.pool.steps_of(request.fixes))
            self.budget.want(self.pool.cost_s(request.fixes) + longer * step_s, keep_s)
            trial = self.budget(request, keep_s)
            if trial.ok:
                self._made.append(trial)
            return trial

        return prove(
            run,
            fixes,
            kind,
            steps=steps,
            seeds=seeds,
            known=self._known(trials),
            own=self.own,
            outputs=lambda trial: read_outputs(self.folder_of(trial.number)),
            final_states=self._final_state,
            wider=wider,
        )

    def _final_state(self, trial: Trial) -> FinalState:
        if trial.number not in self._final_states:
            self._final_states[trial.number] = read_final_state(self.folder_of(trial.number))
        return self._final_states[trial.number]


def prove_ladder(ladder: Ladder, prover: Prover) -> Proof | None:
    """Prove the ladder; if it differs, remove the coarsest rung that may be the cause and repeat.
    None without a ladder."""
    while ladder.fixes:
        proof = prover.ladder(ladder.fixes, ladder.kind(ladder.fixes))
        if proof.state is not ProofState.DIFFERS:
            return proof
        rung = max(ladder.search.rungs, key=_coarseness)
        prover.latest, why = None, Rejection(RejectReason.DIFFERS)
        rejected = Rejected(rung.candidate.fix, why, rung.comparison, proof)
        ladder.withdraw(rung.candidate, rejected)
    return None


def _coarseness(rung: Rung) -> tuple[bool, int]:
    rounding = coarsest_rounding((rung.candidate.fix,))
    return rung.candidate.kind != "exact", ROUNDING_DTYPES.index(rounding)


def program_rounding(seen: Mapping[str, Any]) -> str:
    """The coarsest arithmetic of the program itself."""
    config = seen.get("config") or {}
    if config.get("autocast") in ROUNDING_DTYPES:
        return str(config["autocast"])
    dtypes = {name for model in config.get("models") or () for name in model["dtypes"]}
    coarse = [name for name in reversed(ROUNDING_DTYPES) if name in dtypes]
    if coarse and coarse[0] != "float32":
        return coarse[0]
    switches = config.get("switches") or {}
    on_gpu = (seen.get("run") or {}).get("device") == "cuda"
    if on_gpu and (switches.get("tf32_cudnn") or switches.get("tf32_matmul") != "highest"):
        return "tfloat32"
    return "float32"
