"""What fixes should be worth that no finding proposes."""

import pytest
from diagnosing import Parts, case

from stepscope.diagnose.headroom import predict_fix
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import FixRef

FIX = FixRef("workers", "2")


def changing(monkeypatch, *changes):
    """Every fix makes these changes."""
    monkeypatch.setattr(fix_named(FIX.name), "predict", lambda value, known: [*changes] or None)


def test_a_fix_is_worth_what_its_changes_are(monkeypatch):
    changing(monkeypatch, "a")
    found = predict_fix(case(200.0, model=Parts(a=10.0, b=40.0)), FIX)
    assert found.speedup == pytest.approx(1.25)
    assert found.step_ms == pytest.approx(160)
    assert found.low < 1.25 < found.high
    assert found.how == "200 → 160 ms: with workers=2"


def test_a_loss_is_told_too(monkeypatch):
    changing(monkeypatch, "a")
    found = predict_fix(case(200.0, model=Parts(a=-10.0, b=40.0)), FIX)
    assert found.speedup == pytest.approx(0.75)
    assert found.high < 1


def test_nothing_is_told_where_nothing_is_known(monkeypatch):
    changing(monkeypatch, "a")
    assert predict_fix(case(), FIX) is None
    changing(monkeypatch)
    assert predict_fix(case(model=Parts(a=1.0)), FIX) is None
