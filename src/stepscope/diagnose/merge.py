"""Symptoms of one cause become one finding."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rank import ranked, worth
from stepscope.record.finding import Finding, Predicted

_MOST_PLACES = 6
_MOST_EVIDENCE = 8


def merged(findings: Iterable[Finding], case: Case, rules: Sequence[Rule]) -> list[Finding]:
    """One finding a cause: merged by rule, by fix within a group, by family, and under causes."""
    family = {rule.id: rule.family for rule in rules}
    found = _by(ranked(findings), lambda one: one.id, case)
    found = _by(ranked(found), _remedy, case)
    found = _by(ranked(found), lambda one: family.get(one.id), case)
    return _under_causes(found, case, rules)


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


def _under_causes(findings: list[Finding], case: Case, rules: Sequence[Rule]) -> list[Finding]:
    found = {one.id: one for one in findings}
    for rule in rules:
        for symptom in rule.symptoms:
            if rule.id in found and symptom in found:
                found[rule.id] = _taken_in(found[rule.id], found.pop(symptom), case)
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
