"""What a search found: the ladder, what was rejected, and why it ended."""

from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from stepscope.stats.verdict import Comparison
from stepscope.tune.candidates import Candidate
from stepscope.tune.trial import Trial

Fixes = tuple[str, ...]
UNSETTLED = "unsettled"


class Proven(Protocol):
    """Whether training does the same: `tune.proof.Proof` is one."""

    @property
    def state(self) -> str:
        """identical, matches, unclear, differs, changes training or not proven."""

    @property
    def words(self) -> str:
        """One line."""

    def to_json(self) -> dict[str, Any]:
        """As `tune --json` has it."""


@dataclass(frozen=True, slots=True)
class Rung:
    """A fix that was kept."""

    candidate: Candidate
    """With the prediction as it was beside the rungs below, None where there was none."""
    fixes: Fixes
    """The whole set with it."""
    trials: tuple[Trial, ...]
    """Of that set."""
    comparison: Comparison
    """Against the set below; against the one with `replaces`, where that is not the last."""
    cumulative: Comparison
    """Against the program as it is."""
    proof: Proven | None = None
    """None where proofs were not asked for."""
    replaces: str | None = None
    """The fix that was in its place before."""
    compile_s: float | None = None
    """What compiling takes longer than in the set below, once; None where nothing is compiled."""
    pays_after_steps: int | None = None
    """Steps after which that is made up for; None where nothing is compiled."""

    def to_json(self) -> dict[str, Any]:
        name, _, value = self.candidate.fix.partition("=")
        predicted = self.candidate.predicted
        return {
            "fix": name,
            "params": {"value": value} if value else {},
            "along": list(self.candidate.along),
            "kind": self.candidate.kind,
            "fixes": list(self.fixes),
            "speedup": self.comparison.ratio,
            **_interval(self.comparison),
            "cumulative": {"speedup": self.cumulative.ratio, **_interval(self.cumulative)},
            "predicted_speedup": None if predicted is None else predicted.speedup,
            "predicted": None if predicted is None else asdict(predicted),
            "proof": None if self.proof is None else self.proof.to_json(),
            "replaces": self.replaces,
            "compile_s": self.compile_s,
            "pays_after_steps": self.pays_after_steps,
            "trials": [trial.number for trial in self.trials],
        }


@dataclass(frozen=True, slots=True)
class Rejected:
    """A fix that was not kept."""

    fix: str
    why: str
    """One line."""
    state: str
    """left_out (never tried), not_better, unsettled (the budget ended before it was clear),
    differs (its proof failed), replaced, dropped (no longer of use), not_allowed, or the status of
    the trial that decided."""
    comparison: Comparison | None = None
    proof: Proven | None = None

    def to_json(self) -> dict[str, Any]:
        found = self.comparison
        return {
            "fix": self.fix,
            "why": self.why,
            "state": self.state,
            "speedup": None if found is None else found.ratio,
            **({} if found is None else _interval(found)),
            "proof": None if self.proof is None else self.proof.to_json(),
        }


@dataclass(slots=True)
class Search:
    """Filled as the search goes, so that what is known stands whenever it ends."""

    baseline: tuple[Trial, ...] = ()
    rungs: list[Rung] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    stopped: str | None = None
    """budget or interrupted; None: nothing was left to try."""
    untried: list[str] = field(default_factory=list)
    """Candidates it did not come to."""
    trials: int = 0
    """All that were asked for."""
    seconds: float = 0.0
    """What they took."""

    @property
    def fixes(self) -> Fixes:
        """The set the search ended with; empty where nothing helped."""
        return self.rungs[-1].fixes if self.rungs else ()

    def to_json(self) -> dict[str, Any]:
        return {
            "baseline": [trial.number for trial in self.baseline],
            "ladder": [rung.to_json() for rung in self.rungs],
            "rejected": [one.to_json() for one in self.rejected],
            "stopped": self.stopped,
            "untried": list(self.untried),
            "trials": self.trials,
            "seconds": self.seconds,
        }


def _interval(found: Comparison) -> dict[str, Any]:
    return {"low": found.low, "high": found.high, "verdict": str(found.verdict)}
