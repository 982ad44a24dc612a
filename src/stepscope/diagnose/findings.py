"""From a run or a trace to its findings: rules asked, symptoms merged, causes ranked."""

from collections.abc import Sequence

from msgspec import UNSET, field
from msgspec.structs import asdict, replace

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.diagnose.case import Case, Rule, case_of_run, case_of_trace
from stepscope.diagnose.headroom import headroom
from stepscope.diagnose.key_questions import answer_questions
from stepscope.diagnose.ranking import is_bottleneck, merged, ranked
from stepscope.diagnose.rules import all_rules
from stepscope.diagnose.source_edits import settings_advice, with_edit, with_trainer_settings
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import (
    Answer,
    ChangeKind,
    Confidence,
    Diagnosis,
    Effort,
    Finding,
    Headroom,
    Level,
    Scope,
)
from stepscope.record.timeline import Timeline


class DiagnosedTrace(TraceAnalysis, frozen=True):
    """A trace with its findings: what `analyze --json` prints."""

    findings: list[Finding] = field(default_factory=list)
    minor: list[Finding] = field(default_factory=list)
    healthy: list[Finding] = field(default_factory=list)
    headroom: Headroom | None = None
    baseline: list[Answer] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def diagnose(case: Case, rules: Sequence[Rule] | None = None) -> Diagnosis:
    """All findings of a case; `rules` None: all rules.

    A rule that fails loses its own findings and is reported as a problem.
    """
    problems = list(case.problems)
    if rules is None:
        rules, failed = all_rules()
        problems += failed
    causes: list[Finding] = []
    healthy: list[Finding] = []
    for rule in rules:
        try:
            found = [_promised(_checked(one, rule), case) for one in rule.find(case)]
        except Exception as problem:
            problems.append(f"rule {rule.id} failed: {problem!r}")
        else:
            (healthy if rule.healthy else causes).extend(found)
    ordered = ranked(merged(causes, case, rules))
    largest = [one for one in ordered if is_bottleneck(one)]
    could = headroom(largest, case)
    findings = [_told(one, case, Level.BOTTLENECK) for one in largest]
    return Diagnosis(
        findings=findings,
        minor=[_told(one, case, Level.MINOR) for one in ordered if not is_bottleneck(one)],
        healthy=[replace(one, level=Level.FINE) for one in healthy],
        headroom=could,
        baseline=answer_questions(case, findings, could),
        problems=problems,
    )


def _checked(finding: Finding, rule: Rule) -> Finding:
    """A finding with its rule's hint. Raises if a value is not in its enum."""
    return replace(
        finding,
        effort=Effort(finding.effort),
        kind=ChangeKind(finding.kind),
        confidence=Confidence(finding.confidence),
        scope=Scope(finding.scope),
        timeline=rule.timeline,
    )


def _promised(finding: Finding, case: Case) -> Finding:
    """A finding that promises no fix which would not apply, or is applied already."""
    if finding.fix is None or case.may_apply(finding.fix):
        return finding
    argument = fix_named(finding.fix.name).argument
    return replace(
        finding,
        fix=None,
        predicted=None,
        refused=finding.refused or case.objections(finding.fix),
        settings=tuple(one for one in finding.settings if one.name != argument),
    )


def _told(finding: Finding, case: Case, level: Level) -> Finding:
    """A finding for the outside: with its edit and its advice in words, without its replay."""
    edited = with_edit(finding, case.source, case.device, case.optimizers)
    told = with_trainer_settings(edited, case.through, case.device)
    return replace(
        told,
        level=level,
        advice=settings_advice(told),
        predicted=told.predicted and replace(told.predicted, changes=UNSET),
    )


def with_findings(run: RunSummary, records: RunRecords) -> RunSummary:
    """A run with its findings; none without steps."""
    case = case_of_run(run, records)
    found = diagnose(case) if case is not None else Diagnosis()
    return replace(run, **asdict(found) | {"problems": [*run.problems, *found.problems]})


def with_trace_findings(trace: TraceAnalysis, timeline: Timeline) -> DiagnosedTrace:
    """A trace with its findings."""
    case = case_of_trace(trace, timeline)
    found = diagnose(case) if case is not None else Diagnosis()
    return DiagnosedTrace(**asdict(trace), **asdict(found))
