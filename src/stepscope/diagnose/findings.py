"""From a run or a trace to its findings: rules asked, symptoms merged, causes ranked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analyze.run.records import RunRecords
from stepscope.diagnose.case import Case, Rule, case_of_run, case_of_trace
from stepscope.diagnose.headroom import Headroom, headroom
from stepscope.diagnose.key_questions import Answer, answer_questions
from stepscope.diagnose.ranking import is_bottleneck, merged, ranked
from stepscope.diagnose.rules import RULES
from stepscope.diagnose.source_edits import with_edit, with_trainer_settings
from stepscope.record.finding import Finding
from stepscope.record.timeline import Timeline

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, largest gain first."""

    findings: tuple[Finding, ...] = ()
    minor: tuple[Finding, ...] = ()
    """What costs too little to be called a bottleneck."""
    healthy: tuple[Finding, ...] = ()
    """What is fine."""
    headroom: Headroom | None = None
    baseline: tuple[Answer, ...] = ()
    problems: tuple[str, ...] = ()

    def to_json(self) -> Document:
        """The keys that `show --json` and `analyze --json` have of it."""
        return {
            "findings": [one.to_json() for one in self.findings],
            "minor": [one.to_json() for one in self.minor],
            "healthy": [one.to_json() for one in self.healthy],
            "headroom": self.headroom.to_json() if self.headroom is not None else None,
            "baseline": [one.to_json() for one in self.baseline],
        }


def diagnose(case: Case, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """All findings of a case. A rule that fails costs its own findings and is a problem."""
    causes: list[Finding] = []
    healthy: list[Finding] = []
    problems = list(case.problems)
    for rule in rules:
        try:
            found = list(rule.find(case))
        except Exception as problem:
            problems.append(f"the rule {rule.id} failed: {problem!r}")
        else:
            (healthy if rule.healthy else causes).extend(found)
    ordered = ranked(merged(causes, case, rules))
    written = [
        with_trainer_settings(
            with_edit(one, case.source, case.optimizers), case.through, case.device
        )
        for one in ordered
    ]
    findings = tuple(one for one in written if is_bottleneck(one))
    could = headroom(findings, case)
    return Diagnosis(
        findings=findings,
        minor=tuple(one for one in written if not is_bottleneck(one)),
        healthy=tuple(healthy),
        headroom=could,
        baseline=answer_questions(case, findings, could),
        problems=tuple(problems),
    )


def with_findings(document: Document, records: RunRecords) -> Document:
    """A run's document with its findings."""
    return _document_with(document, case_of_run(document, records))


def with_trace_findings(document: Document, timeline: Timeline) -> Document:
    """A trace's document with its findings."""
    return _document_with(document, case_of_trace(document, timeline))


def _document_with(document: Document, case: Case | None) -> Document:
    """Nothing is found where there are no steps."""
    diagnosis = diagnose(case) if case is not None else Diagnosis()
    problems = [*document.get("problems", ()), *diagnosis.problems]
    return document | diagnosis.to_json() | {"problems": problems}
