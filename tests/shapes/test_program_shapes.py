"""Whatever a program's loop looks like: its steps are counted, and it does what it always did."""

import math
import re

import pytest
from harness import Outcome, Shape, programs


def prints_losses(shape: Shape) -> bool:
    return 'print("loss"' in shape.path.read_text()


@programs()
def test_program_prints_and_exits_as_under_plain_python(outcome: Outcome) -> None:
    assert outcome.plain.exit_code == (7 if outcome.shape.name == "surroundings" else 0)
    assert outcome.observed.stdout == outcome.plain.stdout, outcome.observed.stderr
    assert outcome.observed.exit_code == outcome.plain.exit_code
    assert outcome.document["run"]["exit_code"] == outcome.plain.exit_code


@programs()
def test_a_quiet_run_says_nothing_of_its_own(outcome: Outcome) -> None:
    """Numbers are masked: torch's own warnings carry times and process ids."""
    plain, observed = (
        re.sub(r"\d+", "#", ended.stderr) for ended in (outcome.plain, outcome.observed)
    )
    assert observed == plain


@programs()
def test_steps_are_counted_exactly(outcome: Outcome) -> None:
    assert outcome.document["steps"]["count"] == outcome.shape.steps


@programs(where=lambda shape: shape.optimizer_steps is not None)
def test_each_optimizer_has_its_own_count(outcome: Outcome) -> None:
    counts = [entry["count"] for entry in outcome.document["steps"]["by_optimizer"]]
    assert sorted(counts, reverse=True) == outcome.shape.optimizer_steps


@programs(where=lambda shape: shape.inferred is not None)
def test_steps_counted_without_an_optimizer_are_marked_as_inferred(outcome: Outcome) -> None:
    assert outcome.document["steps"]["inferred"] is outcome.shape.inferred


@programs(where=prints_losses)
def test_recorded_losses_are_the_printed_ones(outcome: Outcome) -> None:
    said = [float(text) for text in outcome.plain.said("loss")]
    printed = [loss if math.isfinite(loss) else None for loss in said]  # JSON has no infinity
    recorded = outcome.document["losses"]
    assert len(printed) == outcome.shape.steps
    if outcome.shape.expects.get("losses") == "mean":
        assert recorded == pytest.approx(printed, rel=1e-12, abs=0.0)
    else:
        assert recorded == printed


@programs(where=lambda shape: not prints_losses(shape) and shape.inferred is not False)
def test_a_program_without_backward_has_no_losses(outcome: Outcome) -> None:
    assert outcome.document["losses"] == [None] * outcome.shape.steps


@programs()
def test_phases_add_up_to_the_mean_step(outcome: Outcome) -> None:
    phases = outcome.document["phases_ms"]
    assert set(phases) == {"data_wait", "h2d", "forward", "backward", "optimizer", "other"}
    assert all(mean_ms >= 0 for mean_ms in phases.values())
    mean_ms = outcome.document["steps"]["mean_ms"]
    assert mean_ms > 0
    assert math.isclose(sum(phases.values()), mean_ms, rel_tol=1e-6)


@programs("plain_loop")
def test_every_phase_of_a_plain_loop_is_seen(outcome: Outcome) -> None:
    phases = outcome.document["phases_ms"]
    assert all(phases[name] > 0 for name in ("data_wait", "forward", "backward", "optimizer"))


@pytest.mark.slow  # the share is one of measured times: a busy machine adds to it
@programs("plain_loop")
def test_a_plain_loop_leaves_at_most_a_tenth_unexplained(outcome: Outcome) -> None:
    phases = outcome.document["phases_ms"]
    assert phases["other"] <= 0.10 * outcome.document["steps"]["mean_ms"]
