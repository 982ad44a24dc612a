"""The finding that waits of one kind make."""

from collections.abc import Iterable, Sequence

from stepscope.analyze.whatif.changes import Change
from stepscope.diagnose.case import Case
from stepscope.diagnose.rules._waitgain import evidence, gain, matters, share
from stepscope.diagnose.rules._waits import Wait, grouped
from stepscope.record.finding import Finding, FixRef


def waits_of(
    case: Case,
    kind: str,
    *,
    name: str,
    title: str,
    why: str,
    advice: str,
    words: str,
    fix: FixRef | None = None,
    besides: Sequence[Change] = (),
    effort: str = "some lines",
    confidence: str = "high",
) -> Iterable[Finding]:
    """One finding of all waits of a kind, where not waiting gains; `words` say why it would.

    `besides` are changes that go with not waiting.
    """
    some = grouped(case).get(kind)
    if not some:
        return
    predicted = gain(case, some, words, besides)
    lost_ms = sum(wait.ms for wait in some)
    if matters(case, predicted, lost_ms):
        yield Finding(
            id=name,
            title=title,
            why=why,
            advice=advice,
            share=share(case, predicted, lost_ms),
            evidence=evidence(some),
            where=tuple(dict.fromkeys(wait.place for wait in some))[:6],
            predicted=predicted,
            fix=fix,
            effort=effort,
            kind="exact",
            confidence=confidence if case.model is not None else "medium",
        )


def often(some: Iterable[Wait]) -> str:
    """How often a step, where it is known: " 3 times a step"."""
    counts = [wait.count for wait in some if wait.count is not None]
    total = sum(counts)
    if not counts:
        return ""
    if total < 0.95:
        return f" every {1 / total:.0f} steps" if total > 0 else ""
    return " in every step" if total < 1.5 else f" {total:.0f} times a step"
