"""The ladder of accepted fixes as the search builds it, what was rejected and why, and when
compiling pays for itself."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil, exp, hypot, log
from statistics import median

from stepscope.measure.contest import ContestResult
from stepscope.measure.prediction import Predictor, no_prediction
from stepscope.measure.trial.pool import Fixes, TrialPool
from stepscope.measure.trial.record import Trial, Trials
from stepscope.record.proof import Proof
from stepscope.record.trial import Rejection, RejectReason, StopReason
from stepscope.stats.verdict import Comparison, verdict_for_interval
from stepscope.tune.search.candidates import FIX_KINDS, Candidate, Rejected, fix_name


def compile_payback(base: Trials, other: Trials) -> tuple[float | None, int | None]:
    """Seconds `other` compiles longer than `base`, and the steps that pay them back. None, None if
    it compiles no longer; None steps if steps are not shorter. If batches differ, steps are
    `other`'s, against the time for as many samples."""
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
    """With its prediction on top of the rungs below, if any."""
    fixes: Fixes  # the set up to and including it
    trials: tuple[Trial, ...]  # of that set
    comparison: Comparison
    """Against the set below; or, if the fix in `replaces` was not the last rung, against the set
    with that."""
    cumulative: Comparison  # against the baseline
    proof: Proof | None = None  # None if no proofs were requested
    replaces: str | None = None  # the fix it replaced
    compile_s: float | None = None
    """Extra one-time compile seconds over the set below; None if nothing is compiled."""
    pays_after_steps: int | None = None
    """Steps after which that pays off; None if nothing is compiled."""
    in_place: bool = False
    """Whether it was compared inside one process."""


@dataclass(frozen=True, slots=True)
class HeldContest:
    """A candidate against what was kept."""

    fixes: Fixes
    comparison: Comparison
    steps: int
    seconds: float
    in_place: bool


@dataclass(slots=True)
class SearchResult:
    """Filled as the search goes, so that it is valid whenever the search ends."""

    baseline: tuple[Trial, ...] = ()
    rungs: list[Rung] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    contests: list[HeldContest] = field(default_factory=list)
    stopped: StopReason | None = None  # None: everything was tried
    untried: list[str] = field(default_factory=list)  # candidates not tried for lack of time
    trials: int = 0  # how many were requested
    seconds: float = 0.0  # what they took

    @property
    def fixes(self) -> Fixes:
        """The final set; empty if nothing helped."""
        return self.rungs[-1].fixes if self.rungs else ()


def _product(first: Comparison | None, second: Comparison) -> Comparison:
    """A gain on top of another. Their errors are independent."""
    if first is None:
        return second
    both, ratio = (first, second), first.ratio * second.ratio
    low = ratio * exp(-hypot(*(log(one.ratio / max(one.low, 1e-9)) for one in both)))
    high = ratio * exp(hypot(*(log(one.high / one.ratio) for one in both)))
    floor = max(first.floor, second.floor)
    return Comparison(ratio, low, high, floor, verdict_for_interval(low, high, floor))


Prove = Callable[[Fixes, str, Trials], Proof]
"""Proves whether training does the same with these fixes, given their coarsest kind and their
trials so far. May run more trials."""


@dataclass(slots=True)
class Ladder:
    """The ladder so far; `search` is always up to date."""

    pool: TrialPool
    predict: Predictor = no_prediction
    prove: Prove | None = None
    allow: str = "numeric"
    search: SearchResult = field(default_factory=SearchResult)
    beaten: dict[str, tuple[Candidate, float]] = field(default_factory=dict)
    """Candidates that were merely no better, and the ladder's speed at that time."""
    in_place: bool = False
    """Whether candidates are compared inside one process where they can be switched at a step."""
    left_open: dict[Fixes, Fixes] = field(default_factory=dict)
    """Those that this left undecided, and what was kept then: processes decide."""
    ended_early: int = 0
    """Processes that candidates broke meanwhile."""

    @property
    def fixes(self) -> Fixes:
        return self.search.fixes

    @property
    def speed(self) -> float:
        """The speed of the kept set, as a multiple of the baseline's."""
        return self.search.rungs[-1].cumulative.ratio if self.search.rungs else 1.0

    def kind(self, fixes: Fixes, *new: Candidate) -> str:
        """The coarsest kind in a set, considering its trials; `new` are not kept yet."""
        known = (*new, *(rung.candidate for rung in self.search.rungs))
        said = (fix.kind for trial in self.pool.trials(fixes) for fix in trial.fixes)
        kinds = [one.kind for one in known if not {*one.whole}.isdisjoint(fixes)]
        return max(["exact", *kinds, *map(str, filter(None, said))], key=FIX_KINDS.index)

    def keep(
        self,
        one: Candidate,
        fixes: Fixes,
        found: Comparison,
        proof: Proof | None = None,
        in_place: bool = False,
    ) -> None:
        """Make a candidate's set the current one. Rungs that contained a replaced fix now contain
        the replacement. What was compared inside one process says more than the few trials there
        are: then the gains of rungs multiply."""
        search, pool, below = self.search, self.pool, self.fixes
        total = search.rungs[-1].cumulative if search.rungs else None
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
        cumulative = _product(total, found) if in_place else None
        if gone and gone[-1].fixes == below:
            below = self.fixes
            better = _product(gone[-1].comparison, found)
            found = better if in_place else pool.compare(below, fixes) or found
        compile_s, pays = compile_payback(pool.trials(below), pool.trials(fixes))
        search.rungs.append(
            Rung(
                candidate=one,
                fixes=fixes,
                trials=tuple(pool.trials(fixes)),
                comparison=found,
                cumulative=cumulative or pool.compare((), fixes) or found,
                proof=proof,
                in_place=in_place,
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
        """Remove a kept fix; the last rung then stands for the set without it, which may have no
        trials yet."""
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
        """Record a rejection, replacing an earlier one of the same fix."""
        others = [other for other in self.search.rejected if other.fix != one.fix]
        self.search.rejected = [*others, one]

    def lost(self, one: Candidate, found: ContestResult) -> None:
        """Record a candidate that did not win its contest."""
        why = found.why
        assert why is not None
        if found.failed is None:
            self.beaten[one.label] = (one, self.speed)
        elif why.fix is not None and fix_name(why.fix) == one.name:
            why = replace(why, fix=None)
        self.reject(Rejected(one.fix, why, found.comparison))
