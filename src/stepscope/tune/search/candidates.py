"""Which fixes to try, and in which order: the largest predicted gain per second of trial first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from stepscope.fixes import registry
from stepscope.fixes.applicability import ObservedProgram, ProgramPart
from stepscope.fixes.base import Fix, FixKind
from stepscope.fixes.registry import all_fixes, fix_named
from stepscope.measure.prediction import Fixes, Prediction, Predictor, no_prediction
from stepscope.measure.trial.pool import RECOMPILE_SHARE
from stepscope.record.fix import Switch
from stepscope.record.proof import Proof
from stepscope.record.trial import Rejection, RejectReason
from stepscope.stats.verdict import Comparison

FIX_KINDS: Final = tuple(map(str, FixKind))
"""From the one that changes nothing to the one that changes training."""
_LEAST: Final = 1.02
_SETTLING: Final = ((1.2, 2), (1.1, 4), (0.0, 7))
"""How many trials it takes to settle a gain of at least this, including those of the other side."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fix to try."""

    fix: str  # as `--fix` takes it: "amp=bf16"
    kind: str  # exact, numeric or semantic, as known before it is tried
    predicted: Prediction | None = None  # None: no prediction
    prior: float = 1.0  # the assumed gain in that case
    extra_s: float = 0.0  # extra seconds of a trial with it: compiling
    after: str | None = None  # the fix it needs; None: it works alone
    along: tuple[str, ...] = ()  # fixes tried together with it, as one
    instead: tuple[str, ...] = ()
    """The same fix with other values, to try if the program breaks with this one."""

    @property
    def name(self) -> str:
        return fix_name(self.fix)

    @property
    def whole(self) -> Fixes:
        return (self.fix, *self.along)

    @property
    def label(self) -> str:
        return " + ".join(self.whole)

    @property
    def switchable(self) -> bool:
        """Whether it can be switched on and off between two steps."""
        return all(fix_named(fix_name(one)).switch is Switch.AT_STEP for one in self.whole)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A fix that was not kept, or not tried."""

    fix: str
    why: Rejection
    comparison: Comparison | None = None
    proof: Proof | None = None


def find_candidates(
    program: ObservedProgram,
    *,
    allow: str = "numeric",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    objective: str = "throughput",
    predict: Predictor = no_prediction,
) -> tuple[list[Candidate], list[Rejected]]:
    """What to try on a program, in order, from its scout run with findings. `only` and `skip` are
    names, or name=value; with `only`, those fixes are tried unless they cannot apply or change more
    than `allow`."""
    proposed: dict[str, tuple[str | None, str]] = {}
    for finding in program.findings:  # those of larger gains first
        kind = finding["kind"] if finding["kind"] in FIX_KINDS else "exact"
        if finding["fix"] is not None:
            proposed.setdefault(finding["fix"]["name"], (finding["fix"]["value"], kind))
        for other in finding["also"]:
            proposed.setdefault(other["name"], (other["value"], "exact"))
    found: list[Candidate] = []
    left: list[Rejected] = []
    for fix in all_fixes():
        chosen = [text for text in only if fix_name(text) == fix.name]
        if only and not chosen:
            continue
        value, found_kind = proposed.get(fix.name, (None, "exact"))
        kind = max(str(fix.kind), found_kind, key=FIX_KINDS.index)
        too_far = FIX_KINDS.index(kind) > FIX_KINDS.index(allow)
        why = (
            (Rejection(RejectReason.SKIPPED) if fix.name in skip else None)
            or (Rejection(RejectReason.NOT_ALLOWED, kind) if too_far else None)
            or _cannot_help(fix, program)
            or (None if chosen else _not_wanted(fix, objective, fix.name in proposed))
        )
        texts = [text for text in chosen if "=" in text] or [
            fix.name if one is None else f"{fix.name}={one}"
            for one in fix.first_values(program, value)
        ]
        texts = [text for text in texts if text not in skip]
        if why is None and not texts:
            why = Rejection(RejectReason.NO_OTHER_VALUE)
        if why is not None:
            left.append(Rejected(fix.name, why))
            continue
        each = [_candidate(fix, text, kind, program, predict) for text in texts]
        if not chosen:  # the one with the largest predicted gain, the others as alternatives
            best = max(each, key=lambda one: one.predicted is not None and one.predicted.speedup)
            each = [replace(best, instead=tuple(one.fix for one in each if one is not best))]
        found += each
    names = {one.name for one in found}
    for one in [one for one in found if one.after is not None and one.after not in names]:
        found.remove(one)
        left.append(Rejected(one.fix, Rejection(RejectReason.REQUIRES, one.after)))
    return by_expected_gain([*_together(found, program, predict), *found], base_s=1.0), left


def _cannot_help(fix: Fix, program: ObservedProgram) -> Rejection | None:
    """Why a fix cannot help this program; None if it may."""
    if fix.needs is not None and fix.needs != program.device:
        return Rejection(RejectReason.NEEDS_DEVICE, fix.needs)
    if fix.works_on is ProgramPart.LOADER and not program.loaders:
        return Rejection(RejectReason.NO_LOADER)
    if fix.works_on is ProgramPart.OPTIMIZER and not program.optimizers:
        return Rejection(RejectReason.NO_OPTIMIZER)
    needs = None if fix.requires is None else fix_named(fix.requires)
    alone = needs is not None and not needs.in_use(program)  # what is missing comes with that fix
    return fix.applies(program) or (None if alone else program.objection(fix.name))


def by_expected_gain(
    found: Iterable[Candidate], base_s: float, clear_s: float | None = None
) -> list[Candidate]:
    """Predicted gains first, by gain per second of what settles it; then unknown gains, then none.
    `base_s` is the time of a trial without them, `clear_s` that of a clear contest inside one
    process, where those are held."""

    def place(one: Candidate) -> tuple[int, float, str]:
        expected = one.prior if one.predicted is None else one.predicted.speedup
        trials = next(count for least, count in _SETTLING if expected >= least)
        seconds = trials * base_s + (1 + RECOMPILE_SHARE * (trials - 1)) * one.extra_s
        if clear_s is not None and one.switchable:
            seconds = trials / 2 * clear_s + one.extra_s
        rate = (1 - 1 / max(expected, 0.01)) / seconds
        if one.predicted is None:
            return 1, -rate, one.fix
        return (0 if expected >= _LEAST else 2), -rate, one.fix

    return sorted(found, key=place)


def fix_name(fix: str) -> str:
    """The name in `name=value`."""
    return fix.partition("=")[0]


def exclude_each_other(one: str, other: str) -> bool:
    """Whether two fixes, as `--fix` takes them, cannot be combined."""
    a, b = fix_name(one), fix_name(other)
    return a == b or registry.exclude_each_other(a, b)


def with_candidate(fixes: Fixes, one: Candidate) -> Fixes:
    """The set with a candidate, without the fixes that exclude it."""
    for new in one.whole:
        fixes = (*(other for other in fixes if not exclude_each_other(other, new)), new)
    return fixes


def _together(
    found: Sequence[Candidate], program: ObservedProgram, predict: Predictor
) -> list[Candidate]:
    """The candidates worth a joint trial."""
    named = {one.name: one for one in found}
    sets = [
        [one, *(named[name] for name in names)]
        for one in found
        for names in fix_named(one.name).tried_with(frozenset(named), program.device)
        if named.keys() >= {*names}
    ]
    needed: dict[str, list[Candidate]] = {}
    for one in found:
        if one.after is not None and fix_named(one.name).needed_beside(program):
            needed.setdefault(one.after, [named[one.after]]).append(one)
    return [
        replace(
            first,
            kind=max((one.kind for one in (first, *others)), key=FIX_KINDS.index),
            predicted=predict((), (first.fix, *(one.fix for one in others))),
            extra_s=sum(one.extra_s for one in (first, *others)),
            along=tuple(one.fix for one in others),
            instead=(),
        )
        for first, *others in (*sets, *needed.values())
    ]


def _candidate(
    fix: Fix, text: str, kind: str, program: ObservedProgram, predict: Predictor
) -> Candidate:
    alone = fix.requires is not None and not fix_named(fix.requires).in_use(program)
    return Candidate(
        fix=text,
        kind=kind,
        predicted=predict((), (text,)),
        prior=fix.prior_gain,
        extra_s=setup_seconds(text, program.device),
        after=fix.requires if alone else None,
    )


def setup_seconds(fix: str, device: str) -> float:
    """Extra seconds of a trial with a fix, by experience; later trials know better."""
    name, _, value = fix.partition("=")
    return fix_named(name).setup_seconds(value, device)


def _not_wanted(fix: Fix, objective: str, found: bool) -> Rejection | None:
    """Why a fix is not tried for this objective unless requested."""
    if objective == "memory" and fix.saves_memory:
        return None
    if fix.only_if_found:
        return None if found else Rejection(RejectReason.NOTHING_FOUND)
    return Rejection(RejectReason.SAVES_MEMORY_ONLY) if fix.saves_memory else None
