"""The proofs of a tune: of each rung as it comes, and of the whole ladder at the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from stepscope.tune.budget import Budget
from stepscope.tune.lab import CONFIRM, Fixes, Lab
from stepscope.tune.proof import DIFFERS, UNCLEAR, Proof
from stepscope.tune.proof_draws import draws_otherwise
from stepscope.tune.proof_outputs import Outputs, read_outputs
from stepscope.tune.proof_rounding import rounding_of
from stepscope.tune.proof_steps import proof_seeds, proof_steps
from stepscope.tune.proof_trials import prove
from stepscope.tune.request import Request
from stepscope.tune.rungs import Rejected
from stepscope.tune.standing import Standing
from stepscope.tune.trial import Trial

_ROUNDINGS: Final = ("float32", "tfloat32", "float16", "bfloat16")
_MORE: Final = 2  # seeds, where those asked for leave it unclear


class Prover:
    """Knows every trial that a proof may rest on.

    `own` is the program's coarsest arithmetic, `epoch` its steps in an epoch, None: not known.
    """

    def __init__(
        self,
        budget: Budget,
        lab: Lab,
        request: Request,
        folder_of: Callable[[int], Path],
        own: str,
        epoch: int | None,
    ) -> None:
        self._budget = budget
        self._lab = lab
        self._request = request
        self._folder_of = folder_of
        self._own = own
        self._epoch = epoch
        self._made: list[Trial] = []  # besides those of the search
        self._before: int | None = None  # so many of them were made during the search

    def rung(self, fixes: Fixes, kind: str, trials: Sequence[Trial]) -> Proof:
        """One seed, by trials that were made for speed where they serve: it may reject."""
        return self._prove(fixes, kind, self._lab.ask.steps, 1, trials)

    def ladder(self, fixes: Fixes, kind: str) -> Proof:
        """All seeds, and steps past the first epoch's end, as far as the budget allows; some more
        seeds where these leave it unclear."""
        if self._before is None:
            self._before = len(self._made)
        lab, wanted = self._lab, self._request.seeds
        later_s = wanted * max(0.0, lab.cost_s(fixes) - lab.cost_s(()))  # what compiling takes
        steps, seeds = self._extent(later_s)
        if not self._confirms(fixes, kind, steps, seeds):
            steps, seeds = self._extent(later_s + lab.confirming_s(fixes))
        if seeds == 1:
            proof = self.rung(fixes, kind, lab.trials(fixes))
            words = f"{proof.words} (the budget held no more)"
            return replace(proof, words=words) if proof.state == UNCLEAR else proof
        proof = self._prove(fixes, kind, steps, seeds, lab.trials(fixes))
        while proof.state == UNCLEAR and seeds < wanted + _MORE and self._holds_another(fixes):
            seeds += 1
            proof = self._prove(fixes, kind, steps, seeds, lab.trials(fixes))
        return proof

    def fresh(self, fixes: Fixes) -> list[Trial]:
        """Trials of these and of the program as it is that were made since the search ended, in
        turn, and tell of its speed."""
        return [
            one
            for one in self._made[self._before :]
            if one.step_ms
            and one.ask.fixes in ((), fixes)
            and not (one.ask.perturb or one.ask.held)
            and one.steps >= self._lab.steps_of(fixes)
        ]

    def _extent(self, later_s: float) -> tuple[int, int]:
        """Steps and seeds, where so much of the budget is for something else."""
        base, left = self._lab.trials(())[0], self._budget.left - later_s
        seeds = proof_seeds(base, left, self._request.seeds)
        return proof_steps(base, self._epoch, left, seeds), seeds

    def _confirms(self, fixes: Fixes, kind: str, steps: int, seeds: int) -> bool:
        """Whether the proof makes all the trials that a confirmation needs."""
        paired = kind == "numeric" and self._lab.trials(())[0].what != "inference"
        paired = paired and not any(map(draws_otherwise, self._lab.trials(fixes)))
        return paired and seeds >= CONFIRM and steps > self._lab.steps_of(fixes)

    def _holds_another(self, fixes: Fixes) -> bool:
        """Whether the budget has room for one more seed, as the last one was."""
        seed = max((one.ask.seed for one in self._made), default=0)
        last = [one.seconds for one in self._made if one.ask.seed == seed]
        pairs = len(self.fresh(fixes)) // 2
        later_s = 0.0 if pairs >= CONFIRM else self._lab.confirming_s(fixes)
        return sum(last) <= self._budget.left - later_s

    def _prove(
        self, fixes: Fixes, kind: str, steps: int, seeds: int, trials: Sequence[Trial]
    ) -> Proof:
        known = [*self._lab.trials(()), *trials, *self._made]
        return prove(
            self._asked,
            fixes,
            kind,
            steps=steps,
            seeds=seeds,
            known=known,
            own=self._own,
            outputs=self._outputs,
        )

    def _asked(self, ask: Any) -> Trial:
        trial = self._budget(ask)
        if trial.ok:
            self._made.append(trial)
        return trial

    def _outputs(self, trial: Trial) -> Outputs:
        return read_outputs(self._folder_of(trial.number))


def settle(standing: Standing, prover: Prover) -> Proof | None:
    """Prove the ladder; where it differs, take away the coarsest rung that may be why, and again.

    None where there is no ladder.
    """
    while standing.fixes:
        kind = standing.kinds()
        proof = prover.ladder(standing.fixes, kind)
        if proof.state != DIFFERS:
            return proof
        rung = max(
            standing.search.rungs,
            key=lambda one: (
                one.candidate.kind != "exact",
                _ROUNDINGS.index(rounding_of((one.candidate.fix,))),
            ),
        )
        standing.withdraw(
            rung.candidate,
            Rejected(rung.candidate.fix, proof.words, "differs", rung.comparison, proof),
        )
    return None


def own_arithmetic(seen: Mapping[str, Any]) -> str:
    """The coarsest arithmetic of the program itself."""
    config = seen.get("config") or {}
    if config.get("autocast") in _ROUNDINGS:
        return str(config["autocast"])
    dtypes = {name for model in config.get("models") or () for name in model["dtypes"]}
    coarse = [name for name in reversed(_ROUNDINGS) if name in dtypes]
    if coarse and coarse[0] != "float32":
        return coarse[0]
    switches = config.get("switches") or {}
    on_gpu = (seen.get("run") or {}).get("device") == "cuda"
    if on_gpu and (switches.get("tf32_cudnn") or switches.get("tf32_matmul") != "highest"):
        return "tfloat32"
    return "float32"
