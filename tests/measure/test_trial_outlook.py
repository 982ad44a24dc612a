"""What fixes should gain beside others, from one recorded window."""

from pathlib import Path

import pytest
from diagnosing import Parts, case

from stepscope.fixes.registry import FIX_NAMES, fix_named
from stepscope.measure import prediction as module
from stepscope.measure.prediction import Prediction, window_predictor

HERE = Path()


def document(*findings):
    return {"findings": findings, "minor": ()}


@pytest.fixture
def seeing(monkeypatch):
    """An outlook on a step of parts, each of which a fix of that name takes away."""

    def made(findings=(), **parts):
        model = Parts(**parts) if parts else None
        monkeypatch.setattr(module, "case_of_run", lambda *given: case(model=model))
        known = {"workers": "data", "cuda_graph": "launches", "amp": "products"}
        for name in FIX_NAMES:
            changes = [known[name]] if name in known else None
            monkeypatch.setattr(fix_named(name), "predict", lambda *given, changes=changes: changes)
        return window_predictor(document(*findings), HERE)

    return made


def test_a_gain_is_told_beside_the_fixes_that_are_kept(seeing):
    see = seeing(data=60.0, launches=20.0, products=15.0, rest=5.0)
    assert see((), ("workers=4",)).speedup == pytest.approx(100 / 40)
    beside = see(("workers=4", "cuda_graph"), ("workers=4", "cuda_graph", "amp=bf16"))
    assert beside.speedup == pytest.approx(20 / 5)
    assert beside.low < beside.speedup < beside.high


def test_one_fix_in_place_of_another_may_be_a_loss(seeing):
    see = seeing(launches=20.0, products=15.0, rest=65.0)
    assert see(("cuda_graph",), ("amp=bf16",)).speedup == pytest.approx(80 / 85)


def test_what_a_fix_that_goes_takes_with_it_is_predicted(seeing):
    see = seeing(launches=20.0, products=15.0, rest=65.0)
    assert see(("cuda_graph", "amp=bf16"), ("amp=bf16",)).speedup == pytest.approx(65 / 85)
    assert see(("cuda_graph", "persistent"), ("cuda_graph",)) is None


def test_of_fixes_tried_as_one_those_with_nothing_to_change_change_nothing(seeing):
    see = seeing(launches=20.0, products=15.0, rest=65.0)
    together = see((), ("amp=bf16", "channels_last", "cuda_graph"))
    assert together.speedup == pytest.approx(100 / 65)
    assert see((), ("channels_last", "sdpa")) is None
    assert see(("sdpa",), ("amp=bf16", "cuda_graph")) is None


def test_findings_speak_where_nothing_can_be_replayed(seeing):
    told = {
        "fix": {"name": "persistent", "value": None},
        "predicted": {"speedup": 1.4, "low": 1.2, "high": 1.6},
        "scope": "step",
    }
    see = seeing([told], data=60.0, rest=40.0)
    assert see(("workers=4",), ("workers=4", "persistent")) == Prediction(1.4, 1.2, 1.6)
    assert see((), ("pin",)) is None


def test_without_a_window_nothing_is_predicted(seeing):
    see = seeing()
    assert see((), ("workers=4",)) is None


def test_a_window_that_cannot_be_replayed_predicts_nothing(seeing, monkeypatch):
    see = seeing(data=60.0, rest=40.0)
    monkeypatch.setattr(Parts, "replay", lambda *given: 1 / 0)
    assert see((), ("workers=4",)) is None
