"""The trials of a proof as they are needed: those already known first, each of them once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stepscope.tune.ask import Ask
from stepscope.tune.proof import DIFFERS, Proof, not_proven
from stepscope.tune.trial import Run, Trial


class Ended(Exception):  # noqa: N818
    """A trial that leaves nothing to compare: what is to be said of it."""

    def __init__(self, proof: Proof, trial: Trial) -> None:
        super().__init__(proof.words)
        self.proof = replace(proof, trials=(trial.number,))


class Trials:
    """A `Run` that uses known trials in place of equal asks, and the first steps of longer ones."""

    def __init__(self, run: Run, known: Sequence[Trial]) -> None:
        self._run = run
        self._known: dict[str, list[Trial]] = {}
        for trial in known:
            self._known.setdefault(_whatever_steps(trial.ask), []).append(trial)

    def __call__(self, ask: Ask) -> Trial:
        kept = self._known.get(_whatever_steps(ask), [])
        for trial in kept:
            if trial.ask.steps >= ask.steps:
                kept.remove(trial)
                return _cut(trial, ask)
        return self._run(ask)


def _whatever_steps(ask: Ask) -> str:
    return replace(ask, steps=0).key()


def _cut(trial: Trial, ask: Ask) -> Trial:
    """As far as the ask goes."""
    steps = min(trial.steps, ask.steps)
    proof = dict(trial.proof)
    if proof.get("rates"):
        proof["rates"] = proof["rates"][:steps]
    if proof.get("short_batches"):
        proof["short_batches"] = [step for step in proof["short_batches"] if step <= steps]
    return replace(trial, ask=ask, steps=steps, losses=trial.losses[:steps], proof=proof)


@dataclass(frozen=True, slots=True)
class Case:
    """What is proven against what. Its trials raise Ended where they fail."""

    trials: Trials
    ask: Ask
    """The baseline's, with seed 0."""
    fixes: tuple[str, ...]

    def held(self) -> "Case":
        """The same with random draws that follow from each batch."""
        return replace(self, ask=replace(self.ask, held=True))

    def base(self, seed: int = 0, perturb: str | None = None) -> Trial:
        trial = self.trials(replace(self.ask, seed=seed, perturb=perturb))
        if not trial.ok:
            why = f"the baseline ended with {trial.why or trial.status}"
            raise Ended(not_proven(why), trial)
        return trial

    def variant(self, seed: int = 0) -> Trial:
        trial = self.trials(replace(self.ask, fixes=self.fixes, seed=seed))
        why = trial.why or trial.status
        if trial.status == "not_applicable":
            raise Ended(not_proven(why), trial)
        if not trial.ok:
            words = f"differs: the program does not end well with it: {why}"
            raise Ended(Proof(DIFFERS, words), trial)
        return trial
