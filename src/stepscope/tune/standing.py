"""What a search keeps, and what it says of the rest."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from stepscope.stats.verdict import Comparison
from stepscope.tune.candidates import KINDS, Candidate, name_of
from stepscope.tune.contest import Contest
from stepscope.tune.lab import Fixes, Lab
from stepscope.tune.outlook import Outlook, no_outlook
from stepscope.tune.payoff import payoff
from stepscope.tune.rungs import Proven, Rejected, Rung, Search
from stepscope.tune.trial import Trial

Prove = Callable[[Fixes, str, Sequence[Trial]], Proven]
"""Whether training does the same with these fixes, the coarsest of which is of this kind; their
trials so far are given. May ask for more."""


class Standing:
    """The ladder so far. `search` is right whenever it is looked at."""

    def __init__(
        self,
        lab: Lab,
        see: Outlook = no_outlook,
        prove: Prove | None = None,
        allow: str = "numeric",
    ) -> None:
        self.lab = lab
        self.see = see
        self.prove = prove
        self.allow = allow
        self.search = Search()
        self.beaten: dict[str, tuple[Candidate, float]] = {}
        """Candidates that were merely no better, and the speed of what they stood beside."""

    @property
    def fixes(self) -> Fixes:
        """Those that are kept."""
        return self.search.fixes

    @property
    def speed(self) -> float:
        """Of what is kept, as a multiple of the program's own."""
        return self.search.rungs[-1].cumulative.ratio if self.search.rungs else 1.0

    def kind(self, fixes: Fixes, *new: Candidate) -> str:
        """The coarsest of a set, as its trials say too; `new` are not kept yet."""
        known = (*new, *(rung.candidate for rung in self.search.rungs))
        said = (fix.get("kind") for trial in self.lab.trials(fixes) for fix in trial.fixes)
        kinds = [one.kind for one in known if not {*one.whole}.isdisjoint(fixes)]
        return max(["exact", *kinds, *map(str, filter(None, said))], key=KINDS.index)

    def kinds(self) -> str:
        """The coarsest of what is kept."""
        return self.kind(self.fixes)

    def keep(
        self, one: Candidate, fixes: Fixes, found: Comparison, proof: Proven | None = None
    ) -> None:
        """A candidate's set takes the place of the present one. What stood with a fix that goes
        now stands with the one in its place."""
        search, lab, below = self.search, self.lab, self.fixes
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
            words = f"{one.fix} is better in its place: {found.ratio:.2f}×"
            self.reject(Rejected(each.fix, words, "replaced", found))
        if gone and gone[-1].fixes == below:
            below = self.fixes
            found = lab.compare(below, fixes) or found
        compile_s, pays = payoff(lab.trials(below), lab.trials(fixes))
        search.rungs.append(
            Rung(
                candidate=one,
                fixes=fixes,
                trials=tuple(lab.trials(fixes)),
                comparison=found,
                cumulative=lab.compare((), fixes) or found,
                proof=proof,
                replaces=out[-1].fix if out else None,
                compile_s=compile_s,
                pays_after_steps=pays,
            )
        )
        for each in out:
            self.beaten[each.label] = (each, self.speed)
        search.rejected = [other for other in search.rejected if other.fix not in one.whole]
        lab.best = fixes

    def drop(self, one: Candidate, found: Comparison, proof: Proven | None) -> None:
        """A rung, or a part of one, that is of no use any more."""
        words = f"no longer of use beside the others: {found.ratio:.2f}× without it"
        self.withdraw(one, Rejected(one.fix, words, "dropped", found), proof)

    def withdraw(self, one: Candidate, why: Rejected, proof: Proven | None = None) -> None:
        """What is kept goes; the last rung then stands for the set without it, of which there may
        be no trials yet."""
        search, lab = self.search, self.lab
        fixes = tuple(fix for fix in self.fixes if fix not in one.whole)
        search.rungs = [rung for rung in search.rungs if {*rung.candidate.whole} & {*fixes}]
        self.reject(why)
        lab.best = fixes
        if not search.rungs or search.fixes == fixes:
            return
        last = search.rungs[-1]
        left = [fix for fix in last.candidate.whole if fix in fixes]
        search.rungs[-1] = replace(
            last,
            candidate=replace(last.candidate, fix=left[0], along=tuple(left[1:])),
            fixes=fixes,
            trials=tuple(lab.trials(fixes)),
            cumulative=lab.compare((), fixes) or last.cumulative,
            proof=proof,
        )

    def reject(self, one: Rejected) -> None:
        """In place of what was said of an earlier attempt."""
        others = [other for other in self.search.rejected if other.fix != one.fix]
        self.search.rejected = [*others, one]

    def lost(self, one: Candidate, found: Contest) -> None:
        """A candidate that did not win its contest."""
        failed, why = found.failed, str(found.why)
        state = "not_better"
        if failed is not None:
            state = "failed" if failed.ok else failed.status
            if failed.blame is not None and name_of(failed.blame) != one.name:
                why = f"{failed.blame}: {why}"
        else:
            self.beaten[one.label] = (one, self.speed)
        self.reject(Rejected(one.fix, why, state, found.comparison))
