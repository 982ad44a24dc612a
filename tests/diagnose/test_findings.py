"""Rules asked, and what comes of their answers."""

import json
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest
from diagnosing import Parts, case, finding

from stepscope.diagnose import rules
from stepscope.diagnose.findings import Diagnosis, diagnose, with_findings
from stepscope.record.finding import FixRef, Place

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def rule(monkeypatch):
    """Makes a rule of a function; gives its name."""

    def make(look):
        name = f"made_{look.__name__}"
        module = types.ModuleType(f"stepscope.diagnose.rules.{name}")
        module.ID, module.look = "made.up", look
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return name

    return make


def test_findings_are_ranked_and_small_ones_apart(rule):
    def found(case):
        yield finding("data.small", 99)
        yield finding("data.large", 50)
        yield finding("healthy.fine", share=0.0)
        yield finding("sync.middle", 80)

    diagnosis = diagnose(case(), [rule(found)])
    assert [one.id for one in diagnosis.findings] == ["data.large", "sync.middle"]
    assert [one.id for one in diagnosis.minor] == ["data.small"]
    assert [one.id for one in diagnosis.healthy] == ["healthy.fine"]
    assert diagnosis.problems == ()


def test_a_rule_that_fails_costs_its_own_findings_only(rule):
    def good(case):
        return [finding("data.a", 50)]

    def bad(case):
        yield finding("data.b", 40)
        raise KeyError("copies")

    diagnosis = diagnose(case(), [rule(bad), rule(good), "no_such_rule"])
    assert [one.id for one in diagnosis.findings] == ["data.a"]
    first, second = diagnosis.problems
    assert first == "the rule made_bad failed: KeyError('copies')"
    assert second.startswith("the rule no_such_rule failed: ModuleNotFoundError")


def test_the_users_line_is_changed_where_it_is_known(rule):
    def look(case):
        yield finding("data.a", 50, fix=FixRef("workers", "4"), where=(Place("train.py", 3),))

    def source(file, line):
        return "loader = DataLoader(data)"

    (found,) = diagnose(case(source=source), [rule(look)]).findings
    assert found.edit["after"] == ["loader = DataLoader(data, num_workers=4)"]


def test_the_headroom_is_of_what_is_called_a_bottleneck(rule):
    def look(case):
        yield finding("data.a", 60, changes=("data",))
        yield finding("sync.b", 99, changes=("sync",))

    model = Parts(data=40.0, sync=1.0, rest=59.0)
    assert diagnose(case(model=model), [rule(look)]).headroom.step_ms == pytest.approx(60)


def test_the_same_input_gives_the_same_output(rule):
    def look(case):
        yield finding("data.a", 60)
        yield finding("sync.b", 61)
        yield finding("sync.b", 62)

    name = rule(look)
    texts = {json.dumps(diagnose(case(), [name]).to_json()) for _ in range(3)}
    assert len(texts) == 1


def test_a_run_without_steps_has_empty_findings(tmp_path):
    document = with_findings({"steps": {"mean_ms": None}, "problems": ["x"]}, tmp_path)
    assert document["findings"] == document["minor"] == document["baseline"] == []
    assert document["headroom"] is None
    assert document["problems"] == ["x"]
    assert set(Diagnosis().to_json()) < set(document)


def test_every_rule_file_is_registered_once():
    folder = Path(rules.__file__).parent
    files = {path.stem for path in folder.glob("[!_]*.py")}
    assert set(rules.RULES) == files
    assert len(rules.RULES) == len(files)


@pytest.mark.parametrize("name", rules.RULES)
def test_a_rule_says_what_it_looks_at(name):
    module = import_module(f"stepscope.diagnose.rules.{name}")
    assert module.ID.partition(".")[2]
    assert module.__doc__
    assert module.ID in (ROOT / "docs" / "findings.md").read_text()


@pytest.mark.parametrize("name", rules.RULES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rule_finds_nothing_in_nothing(name, device):
    assert [one for one in rules.look(name, case(device=device)) if one.share > 0] == []
