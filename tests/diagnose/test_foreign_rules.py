"""Rules of other packages, by the entry points `stepscope.rules`."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from diagnosing import case

from stepscope.diagnose import rules
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.rules import RULES, all_rules
from stepscope.record.finding import Finding

PLUGINS = Path(__file__).parent.parent / "plugins"
FEW = {"steps": {"count": 3}}


@pytest.fixture
def plugins(monkeypatch):
    """The example package as if it were installed."""
    monkeypatch.syspath_prepend(str(PLUGINS))


def test_without_other_packages_there_are_our_own_rules():
    assert all_rules() == (RULES, [])


def test_a_rule_of_another_package_finds_like_ours(plugins):
    diagnosis = diagnose(case(show=FEW))
    assert [one.id for one in diagnosis.findings] == ["example.few_steps"]
    assert diagnosis.problems == []


def pointing_at(monkeypatch, value):
    point = EntryPoint("bad", value, "stepscope.rules")
    monkeypatch.setattr(rules, "entry_points", lambda group: [point])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("stepscope_nowhere:RULE", "failed to load: ModuleNotFoundError"),
        ("stepscope.diagnose.rules:all_rules", "is not a Rule"),
        ("stepscope.diagnose.rules.sync:sync_item", "sync.item exists already"),
    ],
    ids=["missing", "something else", "a known id"],
)
def test_a_rule_that_cannot_be_used_is_one_problem(monkeypatch, value, said):
    pointing_at(monkeypatch, value)
    found, (problem,) = all_rules()
    assert found == RULES
    assert problem.startswith(f"rule bad ({value})")
    assert said in problem
    assert diagnose(case()).problems == [problem]


def test_a_foreign_finding_with_values_we_do_not_know_is_one_problem(monkeypatch, plugins):
    from stepscope_example import rule

    def odd(known):
        more = {"title": "x", "why": "x", "advice": "x", "share": 0.5}
        yield Finding(id=rule.FEW_STEPS.id, effort="a weekend", **more)

    broken = type(rule.FEW_STEPS)(rule.FEW_STEPS.id, "", odd)
    monkeypatch.setattr(rule, "FEW_STEPS", broken)
    diagnosis = diagnose(case(show=FEW))
    assert diagnosis.findings == []
    (problem,) = diagnosis.problems
    assert "example.few_steps" in problem
    assert "a weekend" in problem
