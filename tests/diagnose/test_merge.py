"""Symptoms of one cause."""

import pytest
from diagnosing import Parts, case, finding

from stepscope.diagnose.case import Rule
from stepscope.diagnose.ranking import merged
from stepscope.diagnose.rules import RULES
from stepscope.record.finding import Evidence, FixRef, Place


def test_several_findings_of_a_rule_are_one_with_all_places():
    here, there = Place("train.py", 58), Place("train.py", 60)
    one = finding("sync.item", 90, where=(here,), share=0.1)
    two = finding("sync.item", 95, where=(there, here), share=0.05)
    (found,) = merged([two, one], case(), RULES)
    assert found.where == (here, there)
    assert found.share == pytest.approx(0.15)


def test_their_changes_are_replayed_together():
    model = Parts(first=10.0, second=5.0, rest=85.0)
    one = finding("sync.item", 90, changes=("first",))
    two = finding("sync.item", 95, changes=("second",))
    (found,) = merged([one, two], case(model=model), RULES)
    assert found.predicted.step_ms == pytest.approx(85)
    assert found.predicted.changes == ("first", "second")
    assert found.predicted.low < 100 / 85 < found.predicted.high
    assert found.predicted.reason == "sync.item goes away"


def test_without_a_replay_the_larger_gain_stands():
    one, two = finding("sync.item", 90), finding("sync.item", 95)
    (found,) = merged([two, one], case(), RULES)
    assert found.predicted.step_ms == 90


def test_findings_of_a_group_with_the_same_fix_are_one_cause():
    model = Parts(wait=50.0, rest=50.0)
    bound = finding("data.loader_bound", 50, fix=FixRef("workers", "8"), changes=("wait",))
    few = finding("data.few", 60, fix=FixRef("workers", "4"), changes=("wait", "rest"))
    (found,) = merged([few, bound], case(model=model), RULES)
    assert found.id == "data.loader_bound"
    assert found.predicted.step_ms == 50, "one change is not made twice"
    assert found.also == ()


def test_the_same_fix_in_another_group_is_another_cause():
    one = finding("data.a", 50, fix=FixRef("workers", "8"))
    two = finding("machine.b", 60, fix=FixRef("workers", "4"))
    assert len(merged([one, two], case(), RULES)) == 2


def test_all_waits_are_one_cause_told_by_the_costliest():
    model = Parts(item=20.0, sync=10.0, rest=70.0)
    item = finding("sync.item", 80, changes=("item",), fix=FixRef("lazyitem"), advice="Sum up.")
    sync = finding("sync.synchronize", 90, changes=("sync",), fix=FixRef("nosync"), advice="Drop.")
    (found,) = merged([sync, item], case(model=model), RULES)
    assert found.id == "sync.item"
    assert found.advice == "Sum up. Drop."
    assert found.also == (FixRef("nosync"),)
    assert found.predicted.step_ms == pytest.approx(70)


def test_findings_without_a_fix_stand_alone():
    assert len(merged([finding("data.a", 50), finding("data.b", 60)], case(), RULES)) == 2


KNOWN = (
    Rule("data.cause", "A cause.", find=list, symptoms=("data.symptom",)),
    Rule("data.symptom", "What follows from it.", find=list),
)


def test_a_symptom_goes_under_its_cause_with_its_fix_and_evidence():
    number = Evidence("waits", 3.0, "ms")
    cause = finding("data.cause", 60, fix=FixRef("workers", "8"))
    symptom = finding("data.symptom", 50, fix=FixRef("pin"), evidence=(number,))
    (found,) = merged([symptom, cause], case(), KNOWN)
    assert found.id == "data.cause"
    assert found.also == (FixRef("pin"),)
    assert found.evidence == (number,)


def test_a_symptom_without_its_cause_is_a_finding():
    (found,) = merged([finding("data.symptom", 50)], case(), KNOWN)
    assert found.id == "data.symptom"


def test_every_symptom_is_a_rule():
    known = {rule.id for rule in RULES}
    assert {symptom for rule in RULES for symptom in rule.symptoms} <= known
