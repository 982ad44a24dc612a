"""Rules asked, and what comes of their answers."""

from importlib import import_module
from pathlib import Path

import msgspec
import pytest
from diagnosing import Parts, case, finding
from documents import made

from stepscope.analyze.run.document import RunSummary, to_json
from stepscope.analyze.run.records import RunRecords
from stepscope.diagnose import rules
from stepscope.diagnose.case import Rule
from stepscope.diagnose.findings import diagnose, with_findings
from stepscope.diagnose.rules import RULES
from stepscope.record.finding import Diagnosis, FixRef, Place


def rule(find, **more):
    """A rule made of a function."""
    return Rule(id=f"made.{find.__name__}", cause="Made up.", find=find, **more)


def test_findings_are_ranked_and_small_ones_apart():
    def found(case):
        yield finding("data.small", 99)
        yield finding("data.large", 50)
        yield finding("sync.middle", 80)

    def fine(case):
        yield finding("healthy.fine", share=0.0)

    diagnosis = diagnose(case(), [rule(found), rule(fine, healthy=True)])
    assert [one.id for one in diagnosis.findings] == ["data.large", "sync.middle"]
    assert [one.id for one in diagnosis.minor] == ["data.small"]
    assert [one.id for one in diagnosis.healthy] == ["healthy.fine"]
    assert diagnosis.problems == []


def test_a_rule_that_fails_costs_its_own_findings_only():
    def good(case):
        return [finding("data.a", 50)]

    def bad(case):
        yield finding("data.b", 40)
        raise KeyError("copies")

    diagnosis = diagnose(case(), [rule(bad), rule(good)])
    assert [one.id for one in diagnosis.findings] == ["data.a"]
    assert diagnosis.problems == ["rule made.bad failed: KeyError('copies')"]


def test_the_users_line_is_changed_where_it_is_known():
    def found(case):
        yield finding("data.a", 50, fix=FixRef("workers", "4"), where=(Place("train.py", 3),))

    def source(file, line):
        return "loader = DataLoader(data)"

    (one,) = diagnose(case(source=source), [rule(found)]).findings
    assert one.edit.after == ("loader = DataLoader(data, num_workers=4)",)


def test_the_headroom_is_of_what_is_called_a_bottleneck():
    def found(case):
        yield finding("data.a", 60, changes=("data",))
        yield finding("sync.b", 99, changes=("sync",))

    model = Parts(data=40.0, sync=1.0, rest=59.0)
    assert diagnose(case(model=model), [rule(found)]).headroom.step_ms == pytest.approx(60)


def test_the_same_input_gives_the_same_output():
    def found(case):
        yield finding("data.a", 60)
        yield finding("sync.b", 61)
        yield finding("sync.b", 62)

    texts = {msgspec.json.encode(diagnose(case(), [rule(found)])) for _ in range(3)}
    assert len(texts) == 1


def test_a_run_without_steps_has_empty_findings(tmp_path):
    run = made(RunSummary, steps={"mean_ms": None}, problems=["x"])
    document = to_json(with_findings(run, RunRecords(tmp_path)))
    assert document["findings"] == document["minor"] == document["baseline"] == []
    assert document["headroom"] is None
    assert document["problems"] == ["x"]
    assert set(msgspec.to_builtins(Diagnosis())) < set(document)


def test_every_rule_of_the_package_is_listed_once():
    folder = Path(rules.__file__).parent
    modules = [import_module(f"{rules.__name__}.{path.stem}") for path in folder.glob("*.py")]
    defined = {one.id for module in modules for one in vars(module).values() if type(one) is Rule}
    assert sorted(rule.id for rule in RULES) == sorted(defined)


@pytest.mark.parametrize("one", RULES, ids=lambda rule: rule.id)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rule_finds_nothing_in_nothing(one, device):
    assert [found for found in one.find(case(device=device)) if found.share > 0] == []
