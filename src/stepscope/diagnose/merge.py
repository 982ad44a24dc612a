"""Symptoms of one cause become one finding."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from stepscope.diagnose.case import Case
from stepscope.diagnose.rank import ranked, worth
from stepscope.record.finding import Finding, Predicted

SYMPTOMS: Mapping[str, tuple[str, ...]] = {
    "data.loader_bound": ("machine.few_cores",),
    "data.slow_storage": ("machine.few_cores",),
    "data.no_pinning": ("transfer.blocking_copies", "transfer.not_overlapped"),
    "transfer.blocking_copies": ("transfer.not_overlapped",),
    "compute.small_batch": ("memory.batch_could_grow",),
}
"""A cause, and what only follows from it or goes with its edit, where both were found."""
WAITS = ("sync.item", "sync.cpu", "sync.print", "sync.synchronize", "sync.together")
"""One cause however many there are: whichever wait goes, the next one absorbs it."""
_MOST_PLACES = 6
_MOST_EVIDENCE = 8


def merged(findings: Iterable[Finding], case: Case) -> list[Finding]:
    """One finding a cause: those of a rule, of a fix in a group, all waits, a cause's symptoms."""
    found = _by(ranked(findings), lambda one: one.id, case)
    found = _by(ranked(found), _remedy, case)
    found = _by(ranked(found), lambda one: "wait" if one.id in WAITS else None, case)
    return _under_causes(found, case)


def _by(findings: list[Finding], key: Callable[[Finding], str | None], case: Case) -> list[Finding]:
    """The first of each key takes the others in; None as a key stands alone."""
    heads: dict[str, Finding] = {}
    alone: list[Finding] = []
    for one in findings:
        name = key(one)
        if name is None:
            alone.append(one)
        elif name in heads:
            heads[name] = _taken_in(heads[name], one, case)
        else:
            heads[name] = one
    return [*heads.values(), *alone]


def _remedy(finding: Finding) -> str | None:
    """Two findings of a group with the same fix are one cause."""
    if finding.fix is None:
        return None
    return f"{finding.id.partition('.')[0]} {finding.fix.name}"


def _under_causes(findings: list[Finding], case: Case) -> list[Finding]:
    found = {one.id: one for one in findings}
    for cause, symptoms in SYMPTOMS.items():
        for symptom in symptoms:
            if cause in found and symptom in found:
                found[cause] = _taken_in(found[cause], found.pop(symptom), case)
    return list(found.values())


def _taken_in(head: Finding, other: Finding, case: Case) -> Finding:
    """`head` with what `other` knows besides."""
    fixes = (*head.also, *((other.fix,) if other.fix is not None else ()), *other.also)
    own = head.fix.name if head.fix is not None else None
    share = head.share + other.share if head.id == other.id else max(head.share, other.share)
    return replace(
        head,
        advice=" ".join(_once(head.advice, other.advice)),
        evidence=_once(*head.evidence, *other.evidence)[:_MOST_EVIDENCE],
        where=_once(*head.where, *other.where)[:_MOST_PLACES],
        predicted=_together(head, other, case),
        share=min(1.0, share),
        also=_once(*(fix for fix in fixes if fix.name != own)),
    )


def _together(head: Finding, other: Finding, case: Case) -> Predicted | None:
    """Both changes replayed as one; the larger gain where they are the same or cannot be."""
    one, two = head.predicted, other.predicted
    if one is None or two is None:
        return one or two
    larger = one if worth(head) >= worth(other) else two
    again = head.id != other.id and _remedy(head) is not None and _remedy(head) == _remedy(other)
    if again or not one.changes or not two.changes:
        return larger
    words = "; ".join(_once(_words(one), _words(two)))
    doubt = max(_doubt(one), _doubt(two))
    both = case.predict(*one.changes, *two.changes, words=words, doubt=doubt)
    return both if both is not None and both.speedup > larger.speedup else larger


def _words(predicted: Predicted) -> str:
    """What `how` says after its numbers."""
    return predicted.how.partition(" ms: ")[2] or predicted.how


def _doubt(predicted: Predicted) -> float:
    """How much of the gain its range leaves open."""
    gain = 1 - 1 / predicted.speedup
    return 1 - (1 - 1 / predicted.low) / gain if gain > 0 else 0.0


def _once(*items: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
