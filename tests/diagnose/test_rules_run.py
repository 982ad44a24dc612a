"""Rules about the whole run, on handwritten ones."""

import pytest
from cases import PROGRAM, case, show, site, sound, trace
from rulings import findings_of

from stepscope.record.finding import Place

RULES = ("run.checkpoint_saving", "run.evaluation_share", "run.startup_share", "run.compile_share")


def found(document, window=None, device="cuda"):
    """What the rules find, by id."""
    return sound(one for name in RULES for one in findings_of(name, case(device, document, window)))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_run_that_mostly_trains_is_left_alone(device):
    assert found(show(device), device=device) == {}


def test_a_trace_alone_or_a_run_without_rows_tells_nothing():
    assert found(None, trace()) == {}
    assert found(show() | {"account_s": {}}) == {}


def test_a_checkpoint_in_every_step():
    document = show(
        account_s={"checkpoint": 20.0},
        account_places={"checkpoint": {"file": PROGRAM, "line": 70}},
        sites=[site("save", 70, 20_000.0, count=200)],
    )
    one = found(document)["run.checkpoint_saving"]
    assert (one.scope, one.predicted, one.kind) == ("run", None, "exact")
    assert one.share == pytest.approx(20 / 84.45)
    assert one.where == (Place(PROGRAM, 70),)
    assert "Save every 33 steps" in one.advice
    assert "65 s instead of 84 s" in one.advice


def test_the_last_save_of_a_short_run_is_no_bottleneck():
    document = show(account_s={"checkpoint": 20.0}, sites=[site("save", 70, 20_000.0, count=1)])
    assert found(document) == {}


def test_evaluation_as_long_as_training():
    one = found(show(account_s={"evaluation": 60.0}))["run.evaluation_share"]
    assert one.share == pytest.approx(60 / 124.45)
    assert "Evaluate 19× less often" in one.advice
    assert found(show(account_s={"evaluation": 6.0})) == {}


@pytest.mark.parametrize(
    ("times", "advice"),
    [(1, "Evaluate on part of the data: "), (4, "Evaluate 4× less often, or on part of the data")],
)
def test_no_more_evaluations_are_saved_than_there_are(times, advice):
    document = show(account_s={"evaluation": 60.0}, steps={"evaluations": times})
    one = found(document)["run.evaluation_share"]
    assert one.advice.startswith(advice)


def test_inference_is_not_evaluation():
    account = {"training": 0.0, "warmup": 0.0, "evaluation": 60.0}
    assert found(show(account_s=account)) == {}


def test_preparation_that_outlasts_training():
    document = show("cpu", account_s={"setup": 30.0, "training": 20.0})
    one = found(document, device="cpu")["run.startup_share"]
    assert one.share == pytest.approx(30 / 53.95)
    assert "24 s instead of 54 s" in one.advice


def test_waking_the_gpu_and_importing_torch_are_not_the_programs_own():
    account = {"setup": 3.0, "imports": 10.0, "training": 2.0}
    slow = {"imports": {"module": "torch._dynamo", "seconds": 8.0}}
    assert found(show(account_s=account, account_places=slow)) == {}


def test_a_slow_import_of_something_else_is():
    account = {"setup": 1.0, "imports": 12.0, "training": 20.0}
    slow = {"imports": {"library": "tensorflow", "libraries_s": 9.0}}
    one = found(show(account_s=account, account_places=slow))["run.startup_share"]
    assert "importing libraries, tensorflow the slowest" in one.why
    assert one.share == pytest.approx(10 / 33.95)


def test_a_setup_of_no_time_is_not_blamed_beside_a_slow_import():
    account = {"setup": 0.026, "imports": 12.0, "training": 20.0}
    slow = {"imports": {"library": "tensorflow", "libraries_s": 9.0}}
    one = found(show(account_s=account, account_places=slow))["run.startup_share"]
    assert "importing libraries, tensorflow the slowest" in one.why
    assert "setup" not in one.why
    assert "Preprocess" not in one.advice
    assert "only where it is used" in one.advice


def test_compiling_for_a_short_training():
    counted = {"graphs": 2, "graph_breaks": 0, "recompiles": 0}
    one = found(show(account_s={"compile": 30.0}, compile=counted))["run.compile_share"]
    assert one.share == pytest.approx(30 / 94.45)
    assert found(show(account_s={"compile": 3.0}, compile=counted)) == {}


def test_compiling_the_same_again_and_again_is_another_rules():
    counted = {"graphs": 9, "graph_breaks": 0, "recompiles": 8}
    assert found(show(account_s={"compile": 30.0}, compile=counted)) == {}


def test_time_spent_recording_is_not_the_programs():
    one = found(show(account_s={"evaluation": 60.0, "window": 500.0}))["run.evaluation_share"]
    assert one.share == pytest.approx(60 / 124.45)
