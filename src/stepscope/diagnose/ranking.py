"""Merges findings of one cause, then ranks: the larger gain first, among equals the easier fix."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from stepscope.diagnose.case import Case, Rule
from stepscope.record.finding import ChangeKind, Confidence, Finding, Predicted, Setting

LEAST_GAIN = 0.02
"""Share of the step: a smaller gain is not a bottleneck."""
_WITHIN = 0.9  # gains within a tenth of each other: predictions do not tell them apart
_UNPREDICTED = 0.5  # of a finding's share: how much can be regained is unknown
_MOST_PLACES = 6
_MOST_EVIDENCE = 8
_KINDS = list(ChangeKind)
_CONFIDENCES = list(Confidence)


def gain_share(finding: Finding) -> float:
    """The share of the step (of the run, for scope "run") that removing it would save; 0 where it
    only says what to look at next."""
    if finding.kind is ChangeKind.NONE:
        return 0.0
    if finding.predicted is not None:
        return max(0.0, 1 - 1 / finding.predicted.speedup)
    return _UNPREDICTED * finding.share


def is_bottleneck(finding: Finding) -> bool:
    """Whether it costs enough to be called one, and what it promises is a gain for sure."""
    if finding.predicted is None:
        return finding.share >= LEAST_GAIN
    return gain_share(finding) >= LEAST_GAIN and finding.predicted.low > 1.0


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """Largest gain first; among those within a tenth of the largest remaining, the easiest
    first."""
    left = sorted(findings, key=lambda one: (-gain_share(one), *_ease(one)))
    ordered: list[Finding] = []
    while left:
        least = _WITHIN * gain_share(left[0])
        alike = sum(gain_share(one) >= least for one in left) or 1  # 0: below 0, or NaN
        ordered += sorted(
            left[:alike], key=lambda one: (*_ease(one)[:3], -gain_share(one), *_ease(one)[3:])
        )
        left = left[alike:]
    return ordered


def _ease(finding: Finding) -> tuple[int, int, int, str]:
    """Effort, change to training, confidence; then tie-breakers that make the order unique."""
    return (
        finding.effort.rank,
        _KINDS.index(finding.kind),
        _CONFIDENCES.index(finding.confidence),
        finding.id,
    )


def merged(findings: Iterable[Finding], case: Case, rules: Sequence[Rule]) -> list[Finding]:
    """One finding per cause: merged by rule, by fix within a group, by family, and into causes."""
    family = {rule.id: rule.family for rule in rules}
    found = _merged_by(ranked(findings), lambda one: one.id, case)
    found = _merged_by(ranked(found), _group_and_fix, case)
    found = _merged_by(ranked(found), lambda one: family.get(one.id), case)
    by_id = {one.id: one for one in found}
    for rule in rules:
        for symptom in rule.symptoms:
            if rule.id in by_id and symptom in by_id:
                by_id[rule.id] = _merged_into(by_id[rule.id], by_id.pop(symptom), case)
    return list(by_id.values())


def _merged_by(
    findings: list[Finding], key: Callable[[Finding], str | None], case: Case
) -> list[Finding]:
    """The first finding of each key absorbs the others; a finding with key None stays alone."""
    heads: dict[str, Finding] = {}
    alone: list[Finding] = []
    for one in findings:
        name = key(one)
        if name is None:
            alone.append(one)
        elif name in heads:
            heads[name] = _merged_into(heads[name], one, case)
        else:
            heads[name] = one
    return [*heads.values(), *alone]


def _group_and_fix(finding: Finding) -> str | None:
    """Two findings of a group with the same fix are one cause."""
    return None if finding.fix is None else f"{finding.group} {finding.fix.name}"


def _merged_into(head: Finding, other: Finding, case: Case) -> Finding:
    """`head` with what `other` adds; of two values for one argument, the first wins."""
    settings: dict[tuple[str, str], Setting] = {}
    for one in (*head.settings, *other.settings):
        settings.setdefault((one.owner, one.name), one)
    fixes = (*head.also, *((other.fix,) if other.fix is not None else ()), *other.also)
    own = head.fix.name if head.fix is not None else None
    share = head.share + other.share if head.id == other.id else max(head.share, other.share)
    return replace(
        head,
        advice=" ".join(_unique(*filter(None, (head.advice, other.advice)))),
        settings=tuple(settings.values()),
        evidence=_unique(*head.evidence, *other.evidence)[:_MOST_EVIDENCE],
        where=_unique(*head.where, *other.where)[:_MOST_PLACES],
        predicted=_predicted_together(head, other, case),
        share=min(1.0, share),
        also=_unique(*(fix for fix in fixes if fix.name != own)),
    )


def _predicted_together(head: Finding, other: Finding, case: Case) -> Predicted | None:
    """Both changes replayed as one; the larger gain if they are equal or cannot be replayed."""
    one, two = head.predicted, other.predicted
    if one is None or two is None:
        return one or two
    larger = one if gain_share(head) >= gain_share(other) else two
    fix = _group_and_fix(head)
    again = head.id != other.id and fix is not None and fix == _group_and_fix(other)
    if again or not one.changes or not two.changes:
        return larger
    reason = "; ".join(_unique(*filter(None, (one.reason, two.reason))))
    doubt = max(_doubt(one), _doubt(two))
    both = case.predict(*one.changes, *two.changes, reason=reason, doubt=doubt)
    return both if both is not None and both.speedup > larger.speedup else larger


def _doubt(predicted: Predicted) -> float:
    """How much of the gain its range leaves open."""
    gain = 1 - 1 / predicted.speedup
    return 1 - (1 - 1 / predicted.low) / gain if gain > 0 else 0.0


def _unique(*items: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
