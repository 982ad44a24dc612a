"""A rule of another package: few steps say little."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.record.finding import ChangeKind, Confidence, Effort, Evidence, Finding, Scope

_FEW = 10


def _few_steps(case: Case) -> Iterable[Finding]:
    """The run has fewer than 10 steps."""
    count = case.show.steps.count if case.show else 0
    if 0 < count < _FEW:
        yield Finding(
            id=FEW_STEPS.id,
            title=f"Only {count} steps were measured",
            why="Means of so few steps vary from run to run.",
            advice=f"Run at least {_FEW} steps.",
            share=0.05,
            evidence=(Evidence("steps", count),),
            effort=Effort.ONE_ARGUMENT,
            kind=ChangeKind.NONE,
            confidence=Confidence.HIGH,
            scope=Scope.RUN,
        )


FEW_STEPS = Rule(
    id="example.few_steps", cause="Too few steps to measure anything.", find=_few_steps
)
