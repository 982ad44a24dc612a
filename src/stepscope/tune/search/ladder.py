"""The ladder of accepted fixes as the search builds it, what was rejected and why, and when
compiling pays for itself."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from statistics import median

from stepscope.measure.contest import ContestResult
from stepscope.measure.prediction import Predictor, no_prediction
from stepscope.measure.trial.pool import Fixes, TrialPool
from stepscope.measure.trial.record import Trial, Trials
from stepscope.record.proof import Proof
from stepscope.record.trial import Rejection, RejectReason, StopReason
from stepscope.stats.verdict import Comparison
from stepscope.tune.search.candidates import FIX_KINDS, Candidate, Rejected, fix_name


def compile_payback(base: Trials, other: Trials) -> tuple[float | None, int | None]:
    """Seconds of compiling that `other` has and `base` has not, and the steps that win them back.
    None, None where it compiles no longer; None steps where a step does not become shorter. Where
    batches differ, steps are those of `other`, against the time for as many samples."""
    extra = _compiling(other) - _compiling(base)
    if extra <= 0 or not base or not other:
        return None, None
    samples = [trial.samples_per_step for side in (base, other) for trial in side]
    per_step = 1.0
    if all(samples):
        ours, theirs = (median(t.samples_per_step or 1.0 for t in side) for side in (base, other))
        per_step = theirs / ours
    before, after = (sum(t.mean_ms for t in side) / len(side) for side in (base, other))
    saved_s = (before * per_step - after) / 1e3
    return extra, ceil(extra / saved_s) if saved_s > 0 else None


def _compiling(trials: Trials) -> float:
    return median([trial.compile_s or 0.0 for trial in trials] or [0.0])


@dataclass(frozen=True, slots=True)
class Rung:
    """A fix that was kept."""

    candidate: Candidate
    """With the prediction as it was beside the rungs below, None where there was none."""
    fixes: Fixes  # the whole set with it
    trials: tuple[Trial, ...]  # of that set
    comparison: Comparison
    """Against the set below; against the one with `replaces`, where that is not the last."""
    cumulative: Comparison  # against the program as it is
    proof: Proof | None = None  # None where proofs were not asked for
    replaces: str | None = None  # the fix that was in its place before
    compile_s: float | None = None
    """What compiling takes longer than in the set below, once; None where nothing is compiled."""
    pays_after_steps: int | None = None
    """Steps after which that is made up for; None where nothing is compiled."""


@dataclass(slots=True)
class SearchResult:
    """Filled as the search goes, so that what is known stands whenever it ends."""

    baseline: tuple[Trial, ...] = ()
    rungs: list[Rung] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    stopped: StopReason | None = None  # None: nothing was left to try
    untried: list[str] = field(default_factory=list)  # candidates there was no time for
    trials: int = 0  # all that were asked for
    seconds: float = 0.0  # what they took

    @property
    def fixes(self) -> Fixes:
        """The set the search ended with; empty where nothing helped."""
        return self.rungs[-1].fixes if self.rungs else ()


Prove = Callable[[Fixes, str, Trials], Proof]
"""Whether training does the same with these fixes, the coarsest of which is of this kind; their
trials so far are given. May ask for more."""


@dataclass(slots=True)
class Ladder:
    """The ladder so far. `search` is right whenever it is looked at."""

    pool: TrialPool
    predict: Predictor = no_prediction
    prove: Prove | None = None
    allow: str = "numeric"
    search: SearchResult = field(default_factory=SearchResult)
    beaten: dict[str, tuple[Candidate, float]] = field(default_factory=dict)
    """Candidates that were merely no better, and the speed of what they stood beside."""

    @property
    def fixes(self) -> Fixes:
        return self.search.fixes

    @property
    def speed(self) -> float:
        """Of what is kept, as a multiple of the program's own."""
        return self.search.rungs[-1].cumulative.ratio if self.search.rungs else 1.0

    def kind(self, fixes: Fixes, *new: Candidate) -> str:
        """The coarsest of a set, as its trials say too; `new` are not kept yet."""
        known = (*new, *(rung.candidate for rung in self.search.rungs))
        said = (fix.kind for trial in self.pool.trials(fixes) for fix in trial.fixes)
        kinds = [one.kind for one in known if not {*one.whole}.isdisjoint(fixes)]
        return max(["exact", *kinds, *map(str, filter(None, said))], key=FIX_KINDS.index)

    def keep(
        self, one: Candidate, fixes: Fixes, found: Comparison, proof: Proof | None = None
    ) -> None:
        """A candidate's set takes the place of the present one. What stood with a fix that goes
        now stands with the one in its place."""
        search, pool, below = self.search, self.pool, self.fixes
        gone = [rung for rung in search.rungs if rung.candidate.fix not in fixes]
        out = [
            replace(rung.candidate, fix=fix, along=())
            for rung in search.rungs
            for fix in rung.candidate.whole
            if fix in below and fix not in fixes
        ]
        for rung in gone:
            search.rungs.remove(rung)
            left = [fix for fix in rung.candidate.along if fix in fixes and fix not in one.whole]
            one = replace(one, along=(*one.along, *left))
        for each in out:
            self.reject(Rejected(each.fix, Rejection(RejectReason.REPLACED, fix=one.fix), found))
        if gone and gone[-1].fixes == below:
            below = self.fixes
            found = pool.compare(below, fixes) or found
        compile_s, pays = compile_payback(pool.trials(below), pool.trials(fixes))
        search.rungs.append(
            Rung(
                candidate=one,
                fixes=fixes,
                trials=tuple(pool.trials(fixes)),
                comparison=found,
                cumulative=pool.compare((), fixes) or found,
                proof=proof,
                replaces=out[-1].fix if out else None,
                compile_s=compile_s,
                pays_after_steps=pays,
            )
        )
        for each in out:
            self.beaten[each.label] = (each, self.speed)
        search.rejected = [other for other in search.rejected if other.fix not in one.whole]
        pool.best = fixes

    def withdraw(self, one: Candidate, why: Rejected, proof: Proof | None = None) -> None:
        """What is kept goes; the last rung then stands for the set without it, of which there may
        be no trials yet."""
        search, pool = self.search, self.pool
        fixes = tuple(fix for fix in self.fixes if fix not in one.whole)
        search.rungs = [rung for rung in search.rungs if {*rung.candidate.whole} & {*fixes}]
        self.reject(why)
        pool.best = fixes
        if not search.rungs or search.fixes == fixes:
            return
        last = search.rungs[-1]
        left = [fix for fix in last.candidate.whole if fix in fixes]
        search.rungs[-1] = replace(
            last,
            candidate=replace(last.candidate, fix=left[0], along=tuple(left[1:])),
            fixes=fixes,
            trials=tuple(pool.trials(fixes)),
            cumulative=pool.compare((), fixes) or last.cumulative,
            proof=proof,
        )

    def reject(self, one: Rejected) -> None:
        """In place of what was said of an earlier attempt."""
        others = [other for other in self.search.rejected if other.fix != one.fix]
        self.search.rejected = [*others, one]

    def lost(self, one: Candidate, found: ContestResult) -> None:
        """A candidate that did not win its contest."""
        why = found.why
        assert why is not None
        if found.failed is None:
            self.beaten[one.label] = (one, self.speed)
        elif why.fix is not None and fix_name(why.fix) == one.name:
            why = replace(why, fix=None)
        self.reject(Rejected(one.fix, why, found.comparison))
