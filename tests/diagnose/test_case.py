"""What rules look at."""

import pytest
from diagnosing import Parts, case, finding
from documents import made
from msgspec import to_builtins

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.run.records import RunRecords
from stepscope.diagnose.case import Rule, case_of_run, speedup_range
from stepscope.diagnose.findings import diagnose


def test_a_replay_is_told_of_the_bare_step():
    found = case(200.0, model=Parts(a=10.0, b=40.0)).predict("a", reason="a goes away")
    assert found.step_ms == pytest.approx(160)
    assert found.speedup == pytest.approx(1.25)
    assert found.low < 1.25 < found.high
    assert found.reason == "a goes away"
    assert found.changes == ("a",)


def test_more_doubt_makes_a_wider_range():
    sure = case(model=Parts(a=10.0, b=40.0)).predict("a", reason="", doubt=0.05)
    unsure = case(model=Parts(a=10.0, b=40.0)).predict("a", reason="", doubt=0.5)
    assert unsure.low < sure.low
    assert unsure.high > sure.high
    assert unsure.low >= 1


@pytest.mark.parametrize("left", [40.0, 10.0, 0.5])
def test_ranges_stay_sane_however_much_is_gained_and_however_rough_the_model(left):
    model = Parts(a=50.0 - left, b=left)
    model.error = 0.3
    found = case(model=model).predict("a", reason="")
    assert 1 <= found.low < found.speedup < found.high
    assert found.high <= found.speedup**1.2 * 1.4
    assert found.low >= min(found.speedup, found.speedup**0.8 / 1.4)


def test_the_models_error_counts_for_what_changes_only():
    little, much = speedup_range(1.02, 0.0, 0.2), speedup_range(2.0, 0.0, 0.2)
    assert little[1] / 1.02 < 1.03
    assert much[1] / 2.0 > 1.1
    assert speedup_range(0.5)[0] < 0.5 < speedup_range(0.5)[1] < 1


def test_what_gains_nothing_is_not_predicted():
    assert case(model=Parts(a=0.0, b=40.0)).predict("a", reason="") is None
    assert case().predict("a", reason="no window") is None
    assert case().reach(101.0, "slower") is None


def test_a_prediction_is_json_without_its_changes():
    def found(case):
        yield finding("data.a", 50, changes=(lambda tasks: tasks,))

    (one,) = to_builtins(diagnose(case(), [Rule("data.a", "", found)]))["findings"]
    assert one["predicted"]["step_ms"] == 50
    assert "changes" not in one["predicted"]


def document(**more):
    known = {
        "steps": {"mean_ms": 12.5}, "gpu": None, "run": {"device": "cpu"},
        "phases_ms": {"forward": 12.5}, "timeline": None,
        "config": {"machine": {"cpu": {"usable_cores": 3}}},
    }  # fmt: skip
    return made(RunSummary, known | more)


def test_a_run_is_a_case(tmp_path):
    found = case_of_run(document(), RunRecords(tmp_path))
    assert (found.step_ms, found.device, found.cores) == (12.5, "cpu", 3.0)
    assert found.phases == {"forward": 12.5}
    assert found.model is None
    assert found.problems == ()
    assert found.source("train.py", 1) is None


def test_a_run_of_an_older_machine_description_has_unknown_cores(tmp_path):
    assert case_of_run(document(config={}), RunRecords(tmp_path)).cores == 0


def test_a_run_without_steps_is_none(tmp_path):
    assert case_of_run(document(steps={"mean_ms": None}), RunRecords(tmp_path)) is None


def test_source_lines_come_from_the_snapshot(tmp_path):
    (tmp_path / "sources.json").write_text('{"files": {"train.py": {"7": "x = 1"}}}')
    found = case_of_run(document(), RunRecords(tmp_path))
    assert found.source("train.py", 7) == "x = 1"
    assert found.source("train.py", 8) is None
    assert found.source("/etc/hostname", 1) is None, "no path is opened"
