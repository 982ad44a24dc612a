"""What one rule says of a recording, or of a case made by hand."""

from functools import cache

from recordings import recorded

from stepscope.analyze.timeline.document import trace_analysis
from stepscope.diagnose.case import Case, case_of_trace
from stepscope.diagnose.rules import RULES
from stepscope.record.finding import Finding


@cache
def of_recording(name: str) -> Case:
    """The case of a recorded trace, made once."""
    timeline = recorded(name)
    found = case_of_trace(trace_analysis(timeline), timeline)
    assert found is not None
    return found


def findings_of(rule_id: str, one: Case) -> list[Finding]:
    """What one rule finds."""
    (rule,) = (rule for rule in RULES if rule.id == rule_id)
    return list(rule.find(one))


def only(rule_id: str, one: Case) -> Finding:
    """The one finding of a rule, which must be readable."""
    found = findings_of(rule_id, one)
    assert len(found) == 1
    assert len(found[0].title) <= 60
    assert 0 < found[0].share <= 1
    return found[0]
