"""Which finding comes first: the larger gain, and among equals the quick win."""

from collections.abc import Iterable

from stepscope.record.finding import Finding

LEAST = 0.02
"""Of the step: what gains less is no bottleneck."""
_ALIKE = 0.9  # gains within a tenth of each other: predictions do not tell them apart
_UNPREDICTED = 0.5  # of what it concerns: nobody knows how much of that could be had back
_SMALL, _LARGE = ("one ", "an environment"), ("a redesign", "many ")
_KINDS = ("none", "exact", "numeric", "semantic")
_SURE = ("high", "medium", "low")


def worth(finding: Finding) -> float:
    """The part of the step (of the run, for scope "run") that removing it would save."""
    if finding.predicted is not None:
        return max(0.0, 1 - 1 / finding.predicted.speedup)
    return _UNPREDICTED * finding.share


def is_bottleneck(finding: Finding) -> bool:
    """Whether it costs enough to be called one."""
    cost = finding.share if finding.predicted is None else worth(finding)
    return cost >= LEAST


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The largest gain first; of those within a tenth of the largest left, the easiest first."""
    left = sorted(findings, key=lambda one: (-worth(one), *_ease(one)))
    ordered: list[Finding] = []
    while left:
        least = _ALIKE * worth(left[0])
        alike = [one for one in left if worth(one) >= least]
        ordered += sorted(alike, key=lambda one: (*_ease(one)[:3], -worth(one), *_ease(one)[3:]))
        left = left[len(alike) :]
    return ordered


def _ease(finding: Finding) -> tuple[int, int, int, str, str]:
    """Effort, what it does to training, how sure it is; then what makes the order one."""
    return (
        _effort(finding.effort),
        _place(finding.kind, _KINDS),
        _place(finding.confidence, _SURE),
        finding.id,
        finding.title,
    )


def _effort(words: str) -> int:
    """One line, some lines, a redesign."""
    return 0 if words.startswith(_SMALL) else 2 if words.startswith(_LARGE) else 1


def _place(word: str, order: tuple[str, ...]) -> int:
    return order.index(word) if word in order else len(order)
