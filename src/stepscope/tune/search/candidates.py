"""Which fixes to try, and in which order: the largest predicted gain per second of trial first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from stepscope.fixes.base import Fix, FixKind
from stepscope.fixes.registry import all_fixes, fix_named
from stepscope.measure.prediction import Fixes, Prediction, Predictor, no_prediction
from stepscope.measure.trial_pool import RECOMPILE_SHARE
from stepscope.record.rejection import Rejection, RejectReason
from stepscope.tune.search.applicable import (
    first_values,
    reason_not_to_try,
    scout_device,
    scout_loaders,
)

Document = Mapping[str, Any]
FIX_KINDS: Final = tuple(map(str, FixKind))
"""From the one that changes nothing to the one that changes training."""
_PRIORS: Final = {"batch": 1.1, "arithmetic": 1.05, "launch": 1.04, "data": 1.03, "waiting": 1.02}
"""The gain that stands in where nothing is predicted, by group."""
_FOR_MEMORY: Final = ("checkpointing", "accumulate", "expandable_segments")
_IF_FOUND: Final = ("affinity", "cache", "threads", "expandable_segments", "drop_last")
"""Tried for speed only where a finding or the user names them."""
_COMPILING_S: Final = {"cuda": 35.0, "cpu": 20.0}
_AUTOTUNING: Final = 5.0  # times as long
_LEAST: Final = 1.02
_SETTLING: Final = ((1.2, 2), (1.1, 4), (0.0, 7))
"""How many trials it takes for a gain of so much, those of what it stands beside included."""
_TOGETHER: Final = (
    ("amp", "channels_last"),
    ("amp", "channels_last", "cuda_graph"),
    ("amp", "channels_last", "compile"),
)
"""Fixes that may each be of no use without the others: convolutions in 16 bits want their channels
last, and transpose what is not; and a GPU that waits for its launches gains by neither, until
those are recorded or compiled away."""
_OTHERWISE: Final = (("amp", "cuda_graph"),)
"""Where there is nothing to do for channels-last. Half precision alone then shows what it gains,
and does not wait for a trial that compiles."""
_OF_WORKERS: Final = ("persistent", "recycle")
"""Tried with workers, as one, where epochs are short and where batches are large: starting workers
anew, or carrying batches over in fresh memory, takes much of what they gain."""
_SHORT: Final = 130  # steps of an epoch, three of which a trial can have
_LARGE: Final = 1 << 20  # bytes of a batch


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fix to try."""

    fix: str
    """As `--fix` takes it: "amp=bf16"."""
    kind: str
    """exact, numeric or semantic, as far as known before it is tried."""
    predicted: Prediction | None = None
    """None: nothing is predicted."""
    prior: float = 1.0
    """The gain that stands in then."""
    extra_s: float = 0.0
    """What a trial with it takes longer: compiling."""
    after: str | None = None
    """The fix without which it has nothing to do; None: it stands alone."""
    along: tuple[str, ...] = ()
    """Fixes that are tried with it, as one."""
    instead: tuple[str, ...] = ()
    """The same fix with other values, to be tried where the program breaks with this one."""

    @property
    def name(self) -> str:
        return fix_name(self.fix)

    @property
    def whole(self) -> Fixes:
        return (self.fix, *self.along)

    @property
    def label(self) -> str:
        return " + ".join(self.whole)


@dataclass(frozen=True, slots=True)
class NotTried:
    """A fix that is not tried, and why."""

    fix: str
    why: Rejection


def find_candidates(
    scout: Document,
    *,
    allow: str = "numeric",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    objective: str = "throughput",
    see: Predictor = no_prediction,
) -> tuple[list[Candidate], list[NotTried]]:
    """What to try on a program, from its scout run's document with findings, in order.

    `only` and `skip` are names, or name=value; with `only`, what those name is tried unless it
    cannot do anything or goes further than `allow`.
    """
    proposed = _proposed(scout)
    found: list[Candidate] = []
    left: list[NotTried] = []
    for fix in all_fixes():
        chosen = [text for text in only if fix_name(text) == fix.name]
        if only and not chosen:
            continue
        kind = max(str(fix.kind), proposed.get(fix.name, (None, "exact"))[1], key=FIX_KINDS.index)
        why = (
            (Rejection(RejectReason.SKIPPED) if fix.name in skip else None)
            or _too_far(kind, allow)
            or _no_use(reason_not_to_try(fix, scout))
            or (None if chosen else _not_wanted(fix, objective, fix.name in proposed))
        )
        texts = _texts(fix, scout, chosen, proposed.get(fix.name, (None,))[0])
        texts = [text for text in texts if text not in skip]
        if why is None and not texts:
            why = Rejection(RejectReason.NO_OTHER_VALUE)
        if why is not None:
            left.append(NotTried(fix.name, why))
            continue
        each = [_candidate(fix, text, kind, scout, see) for text in texts]
        found += each if chosen else [_likeliest(each)]
    names = {one.name for one in found}
    for one in [one for one in found if one.after is not None and one.after not in names]:
        found.remove(one)
        left.append(NotTried(one.fix, Rejection(RejectReason.REQUIRES, one.after)))
    return by_expected_gain([*_together(found, scout, see), *found], base_s=1.0), left


def by_expected_gain(found: Iterable[Candidate], base_s: float) -> list[Candidate]:
    """Predicted gains first, by gain per second of the trials that settle it; then unknown ones,
    then none.

    `base_s` is what a trial without anything of theirs takes.
    """

    def place(one: Candidate) -> tuple[int, float, str]:
        expected = one.prior if one.predicted is None else one.predicted.speedup
        trials = next(count for least, count in _SETTLING if expected >= least)
        seconds = trials * base_s + (1 + RECOMPILE_SHARE * (trials - 1)) * one.extra_s
        rate = (1 - 1 / max(expected, 0.01)) / seconds
        if one.predicted is None:
            return 1, -rate, one.fix
        return (0 if expected >= _LEAST else 2), -rate, one.fix

    return sorted(found, key=place)


def fix_name(fix: str) -> str:
    """The name in `name=value`."""
    return fix.partition("=")[0]


def exclude_each_other(one: str, other: str) -> bool:
    """Whether two fixes, as `--fix` takes them, cannot be had together."""
    a, b = fix_name(one), fix_name(other)
    return a == b or b in fix_named(a).bad_with or a in fix_named(b).bad_with


def with_candidate(fixes: Fixes, one: Candidate) -> Fixes:
    """The set with a candidate, without those fixes that it cannot be had with."""
    for new in one.whole:
        fixes = (*(other for other in fixes if not exclude_each_other(other, new)), new)
    return fixes


def _likeliest(each: Sequence[Candidate]) -> Candidate:
    """The one with the largest predicted gain, the others in its stead."""
    best = max(each, key=lambda one: one.predicted is not None and one.predicted.speedup)
    return replace(best, instead=tuple(one.fix for one in each if one is not best))


def _together(found: Sequence[Candidate], scout: Document, see: Predictor) -> list[Candidate]:
    """Those of the candidates that are worth a trial as one."""
    named, on = {one.name: one for one in found}, scout_device(scout)
    known = _TOGETHER if "channels_last" in named else _OTHERWISE
    sets = [[named[name] for name in names] for names in known if named.keys() >= {*names}]
    if alone := [one for one in found if one.after is not None and _matters(one, scout)]:
        sets.append([named["workers"], *alone])
    return [
        replace(
            first,
            kind=max((one.kind for one in (first, *others)), key=FIX_KINDS.index),
            predicted=see((), (first.fix, *(one.fix for one in others))),
            extra_s=sum(one.extra_s for one in (first, *others)),
            along=tuple(one.fix for one in others),
            instead=(),
        )
        for first, *others in sets
        if on == "cuda" or not any(one.name == "compile" for one in others)
    ]


def _matters(one: Candidate, scout: Document) -> bool:
    """Whether workers are likely to need it."""
    if one.name == "recycle":
        return int((scout.get("steps") or {}).get("batch_bytes") or 0) >= _LARGE
    sizes = [(each.get("samples"), each.get("batch_size")) for each in scout_loaders(scout)]
    return all(count and size and count / size <= _SHORT for count, size in sizes)


def _candidate(fix: Fix, text: str, kind: str, scout: Document, see: Predictor) -> Candidate:
    alone = fix.name in _OF_WORKERS and not any(
        one.get("num_workers") for one in scout_loaders(scout)
    )
    return Candidate(
        fix=text,
        kind=kind,
        predicted=see((), (text,)),
        prior=_PRIORS.get(fix.group, 1.0),
        extra_s=compile_seconds(text, scout_device(scout)),
        after="workers" if alone else None,
    )


def compile_seconds(fix: str, device: str) -> float:
    """What a trial takes longer with a fix, by experience; later trials tell better."""
    name, _, value = fix.partition("=")
    if name != "compile":
        return 0.0
    return _COMPILING_S[device] * (_AUTOTUNING if value.startswith("max-autotune") else 1.0)


def _texts(fix: Fix, scout: Document, chosen: Sequence[str], proposed: str | None) -> list[str]:
    given = [text for text in chosen if "=" in text]
    if given:
        return given
    values = first_values(fix, scout, proposed)
    return [fix.name if value is None else f"{fix.name}={value}" for value in values]


def _proposed(scout: Document) -> dict[str, tuple[str | None, str]]:
    """The values and kinds that findings give fixes, those of larger gains first."""
    found: dict[str, tuple[str | None, str]] = {}
    for finding in (*scout.get("findings", ()), *scout.get("minor", ())):
        kind = finding["kind"] if finding["kind"] in FIX_KINDS else "exact"
        if finding["fix"] is not None:
            found.setdefault(finding["fix"]["name"], (finding["fix"]["value"], kind))
        for other in finding["also"]:
            found.setdefault(other["name"], (other["value"], "exact"))
    return found


def _too_far(kind: str, allow: str) -> Rejection | None:
    if FIX_KINDS.index(kind) <= FIX_KINDS.index(allow):
        return None
    return Rejection(RejectReason.NOT_ALLOWED, kind)


def _no_use(words: str | None) -> Rejection | None:
    return None if words is None else Rejection(RejectReason.NOTHING_TO_DO, words)


def _not_wanted(fix: Fix, objective: str, found: bool) -> Rejection | None:
    """Why a fix is not for this objective, unless it is asked for."""
    if objective == "memory" and fix.name in _FOR_MEMORY:
        return None
    if fix.name in _IF_FOUND:
        return None if found else Rejection(RejectReason.NOTHING_FOUND)
    return Rejection(RejectReason.SAVES_MEMORY_ONLY) if fix.name in _FOR_MEMORY else None
