"""What `--budget` means, and what is kept back."""

import pytest
from tune_machine import Machine, slow_program

from stepscope.launch.program import Program
from stepscope.measure.trial.pool import Budget, BudgetSpent, parse_budget
from stepscope.measure.trial.record import TrialRequest
from stepscope.record.errors import UsageError
from stepscope.tune.document import ConfirmFailure
from stepscope.tune.proof.prover import Prover, prove_ladder
from stepscope.tune.request import TuneRequest
from stepscope.tune.search.candidates import Candidate
from stepscope.tune.search.confirm import confirm
from stepscope.tune.search.ladder import Ladder
from stepscope.tune.search.strategy import run_search

FIXES = ("workers=12", "nosync", "amp=bf16", "tf32=on", "pin")
EVERY = [Candidate(fix, "numeric") for fix in FIXES]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("45", 45), ("0.5h", 1800)],
)
def test_budgets_are_written_as_times(text, seconds):
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10x", "-5m", "0", "5 m s", "m", "10m!"])
def test_what_is_no_time_is_refused_in_one_line(text):
    with pytest.raises(UsageError, match="--budget"):
        parse_budget(text)


def test_trials_count_by_their_own_seconds():
    machine = Machine(lambda fixes: 100.0, startup_s=6.0)
    budget = Budget(machine, 25.0)
    budget(TrialRequest(steps=40))
    assert budget.spent == budget.seconds - budget.left == 10.0
    assert budget.asked == 1
    budget.want(10.0, reserve=5.0)
    with pytest.raises(BudgetSpent):
        budget.want(10.0, reserve=5.1)


@pytest.mark.parametrize("seconds", [40.0, 90.0, 120.0, 200.0])
def test_the_search_leaves_time_for_its_confirmation(seconds):
    machine = Machine(slow_program)
    lab = machine.pool(seconds)
    found = run_search(Ladder(lab, machine.predictor()), EVERY)
    kept_back = 3 * (lab.cost_s(()) + lab.cost_s(found.fixes))
    assert lab.budget.left >= min(kept_back, seconds / 2, seconds - 2 * lab.cost_s(()))
    assert found.stopped == ("budget" if found.untried or seconds < 200 else None)


def test_a_budget_that_ends_in_the_middle_leaves_the_best_so_far():
    machine = Machine(slow_program)
    found = run_search(Ladder(machine.pool(110.0), machine.predictor()), EVERY)
    assert found.stopped == "budget"
    assert found.fixes[:1] == ("workers=12",)
    assert found.untried
    assert not set(found.untried) & set(found.fixes)


def test_what_compiles_takes_long_once_only():
    machine = Machine(lambda fixes: 100.0, startup_s=6.0, compile_s=40.0)
    lab = machine.pool(extra_s=lambda fix: 40.0 if fix.startswith("compile") else 0.0)
    lab.fresh(())
    compiled = ("compile=default",)
    assert (lab.cost_s(()), lab.cost_s((), 3)) == (10.0, 30.0)
    assert (lab.cost_s(compiled), lab.cost_s(compiled, 3)) == (50.0, 90.0)
    lab.fresh(compiled)
    assert lab.cost_s(compiled) == 20.0
    lab.fresh(compiled)
    assert lab.cost_s(compiled, 2) == 36.0  # as the last one, which found the cache
    assert lab.cost_s(("amp=bf16", *compiled)) == 50.0  # as the first of those that compile so


@pytest.mark.parametrize(("compile_s", "other_s"), [(20.0, 110.0), (80.0, 410.0), (0.0, 70.0)])
def test_another_way_to_compile_is_thought_to_take_as_long_as_the_first_did_here(
    compile_s, other_s
):
    machine = Machine(lambda fixes: 100.0, startup_s=6.0, compile_s=compile_s)
    thought = {"compile=default": 40.0, "compile=max-autotune": 200.0}
    lab = machine.pool(extra_s=lambda fix: thought.get(fix, 0.0))
    lab.fresh(())
    lab.fresh(("amp=bf16", "compile=default"))
    assert lab.cost_s(("amp=bf16", "compile=max-autotune")) == pytest.approx(other_s)


def test_what_was_not_tried_yet_takes_as_long_as_the_most_of_it_that_was():
    lab = Machine(slow_program, startup_s=2.0).pool()
    lab.fresh(())
    lab.fresh(("workers=12",))
    lab.fresh(("amp=bf16",))
    with_workers = lab.cost_s(("workers=12",))
    assert lab.cost_s(("pin",)) == lab.cost_s(()) > with_workers
    assert lab.cost_s(("workers=12", "pin")) == with_workers
    assert lab.cost_s(("workers=12", "pin"), 2) == 2 * with_workers


def test_a_budget_that_a_look_and_the_baseline_use_half_of_still_tries_the_most_promising():
    machine = Machine(slow_program)
    lab = machine.pool(110.0)
    lab.budget.spent = 40.0  # a first look
    found = run_search(Ladder(lab, machine.predictor()), EVERY)
    assert found.fixes == ("workers=12",)
    assert lab.budget.left >= lab.confirming_s(found.fixes, 2)


def test_a_candidate_that_takes_too_long_does_not_end_the_search_of_others():
    machine = Machine(slow_program, compile_s=300.0)
    lab = machine.pool(400.0, extra_s=lambda fix: 300.0 if fix.startswith("compile") else 0.0)
    found = run_search(
        Ladder(lab), [Candidate("compile=default", "numeric", extra_s=300.0), *EVERY]
    )
    assert found.untried == ["compile=default"]
    assert found.stopped == "budget"
    assert "workers=12" in found.fixes


@pytest.mark.parametrize("seconds", [15.0, 40.0, 75.0, 90.0, 150.0, 400.0])
@pytest.mark.parametrize("surprise", ["", "pin", "workers=12", "nosync"])
def test_no_stage_exceeds_the_budget_whatever_takes_longer_than_expected(seconds, surprise):
    """Fixes that take a minute more than anything known of them."""
    machine = Machine(slow_program, told=learning)
    usual = machine.cost_s
    machine.cost_s = lambda fixes, *more: usual(fixes, *more) + 60.0 * (surprise in fixes)
    lab = machine.pool(seconds)
    request = TuneRequest(Program("train.py", (), module=False), budget_s=seconds)
    prover = Prover(lab.budget, lab, request, lambda number: None, "float32", None)
    ladder = Ladder(lab, machine.predictor(), prover.rung)
    found = run_search(ladder, EVERY)
    prove_ladder(ladder, prover)
    final = confirm(lab, found, prover.fresh(found.fixes))
    assert lab.budget.spent <= seconds
    assert all(ask.limit_s <= seconds for ask in machine.asks)
    if final is not None and final.comparison is None:
        assert final.failure is ConfirmFailure.NO_BUDGET
    if surprise and seconds < 90.0:
        assert surprise not in found.fixes


def test_a_baseline_that_cannot_fit_is_not_begun():
    machine = Machine(slow_program)
    lab = machine.pool(20.0)
    lab.first_s = 30.0  # as the scout run shows
    found = run_search(Ladder(lab), EVERY)
    assert (machine.asks, found.stopped, found.baseline) == ([], "budget", ())
    assert found.untried == [*FIXES]


def learning(ask):
    return {"losses": tuple(2.0 * 0.97**step for step in range(ask.steps)), "what": "training"}


def test_what_only_the_first_trial_starts_is_charged_and_not_expected_of_others():
    machine = Machine(lambda fixes: 100.0, told=lambda ask: {"shared_s": 12.0})
    lab = machine.pool(60.0)
    lab.more(())
    assert (lab.budget.spent, lab.cost_s(())) == (22.0, 10.0)


def test_a_trial_cut_off_is_charged_and_ends_the_search():
    machine = Machine(lambda fixes: 100.0, startup_s=6.0)
    budget = Budget(machine, 25.0)
    budget(TrialRequest(steps=40))
    with pytest.raises(BudgetSpent):
        budget(TrialRequest(steps=400))
    assert budget.spent == 25.0
    with pytest.raises(BudgetSpent):
        budget(TrialRequest(steps=1))
    assert len(machine.asks) == 2


@pytest.mark.parametrize("after", [0, 1, 3, 6, 9])
def test_an_interrupt_gives_what_is_known(after):
    machine = Machine(slow_program, stop_at=after)
    found = run_search(Ladder(machine.pool(), machine.predictor()), EVERY)
    assert found.stopped == "interrupted"
    assert found.trials == after
    assert len(found.baseline) >= min(after, 2)
    assert found.fixes == () if after < 4 else found.fixes[0] == "workers=12"
    assert found.stopped == "interrupted"
