"""The tables of docs/findings.md are the list of rules. `python tests/diagnose/test_rules_doc.py`
writes them anew."""

import inspect
from pathlib import Path

import pytest

from stepscope.diagnose.case import Rule
from stepscope.diagnose.rules import RULES

DOCS = Path(__file__).parent.parent.parent / "docs" / "findings.md"
HEADING = "## The rules\n"
TITLES = {
    "data": "Data",
    "transfer": "Transfer",
    "sync": "Synchronisation",
    "launch": "Launch",
    "compute": "Compute",
    "memory": "Memory",
    "ranks": "Ranks",
    "run": "Run",
    "machine": "Machine",
    "healthy": "Healthy",
}


def row(rule: Rule) -> str:
    """A rule with its cause and, from its docstring, when it is reported."""
    when = " ".join((inspect.getdoc(rule.find) or "").split("\n\n")[0].split())
    return f"| `{rule.id}` | {rule.cause} | {when} |"


def tables() -> str:
    parts = []
    for group, title in TITLES.items():
        rows = [row(rule) for rule in RULES if rule.group == group]
        parts.append(
            "\n".join([f"### {title}", "| id | cause | reported when |", "|---|---|---|", *rows])
        )
    return HEADING + "\n\n".join(parts) + "\n"


def test_the_docs_list_every_rule_as_it_is():
    told = DOCS.read_text()
    assert told[told.index(HEADING) :] == tables()


@pytest.mark.parametrize("one", RULES, ids=lambda rule: rule.id)
def test_a_rule_says_what_it_looks_for(one):
    assert one.group in TITLES
    assert one.id.partition(".")[2]
    assert one.cause.endswith(".")
    assert one.find.__doc__


if __name__ == "__main__":
    text = DOCS.read_text()
    DOCS.write_text(text[: text.index(HEADING)] + tables())
