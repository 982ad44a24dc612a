"""The last word rests on fresh trials, and says where it does not hold."""

import pytest
from msgspec.structs import replace
from tune_machine import Machine, apart, slow_program

from stepscope.stats.verdict import Verdict
from stepscope.tune.document import ConfirmFailure
from stepscope.tune.search.candidates import Candidate
from stepscope.tune.search.confirm import confirm
from stepscope.tune.search.ladder import Ladder, compile_payback
from stepscope.tune.search.strategy import run_search

WORKERS = [Candidate("workers=12", "exact")]


def searched(machine, found=WORKERS, seconds=1e6, **more):
    lab = machine.pool(seconds, **more)
    return lab, run_search(Ladder(lab), found)


def test_baseline_and_ladder_are_run_anew_in_turn():
    machine = Machine(slow_program)
    lab, found = searched(machine)
    before = len(machine.asks)
    final = confirm(lab, found)
    fresh = machine.asks[before:]
    assert ["f" if ask.fixes else "S" for ask in fresh] == list("SffSSf")
    assert {trial.number for trial in (*final.baseline, *final.ladder)} == set(
        range(before + 1, before + 7)
    )
    assert final.confirmed
    assert final.comparison.low < 64.5 / 24.5 < final.comparison.high
    assert final.comparison.verdict == "faster"


def test_trials_made_in_turn_for_the_proof_serve_and_others_are_added():
    machine = Machine(slow_program)
    lab, found = searched(machine)
    fresh = [lab.budget(replace(lab.request, fixes=fixes, seed=1)) for fixes in ((), found.fixes)]
    before = len(machine.asks)
    final = confirm(lab, found, fresh)
    assert ["f" if ask.fixes else "S" for ask in machine.asks[before:]] == list("fSSf")
    assert (final.baseline[0], final.ladder[0]) == tuple(fresh)
    assert (len(final.baseline), len(final.ladder)) == (3, 3)
    enough = [*final.baseline, *final.ladder]
    assert confirm(lab, found, enough).ladder == final.ladder
    assert len(machine.asks) == before + 4


def test_small_gains_get_five_processes_where_the_budget_allows():
    def step_ms(fixes):
        return 9.2 if fixes else 10.0

    machine = Machine(step_ms, noise=apart(0.001, 0.01))
    lab, found = searched(machine)
    assert len(confirm(lab, found).ladder) == 5
    for pairs in (3, 2):
        pair_s = lab.cost_s(()) + lab.cost_s(found.fixes)
        lab.budget.seconds = lab.budget.spent + 1.02 * pairs * pair_s
        assert len(confirm(lab, found).ladder) == pairs


def test_without_time_for_two_pairs_nothing_is_claimed_and_the_budget_is_kept():
    lab, found = searched(Machine(slow_program))
    lab.budget.seconds = lab.budget.spent + 1.5 * (lab.cost_s(()) + lab.cost_s(found.fixes))
    final = confirm(lab, found)
    assert final.failure is ConfirmFailure.NO_BUDGET
    assert not final.confirmed
    assert lab.budget.spent <= lab.budget.seconds


def test_without_a_ladder_there_is_nothing_to_confirm():
    machine = Machine(lambda fixes: 10.0)
    lab, found = searched(machine)
    asked = len(machine.asks)
    assert confirm(lab, found) is None
    assert len(machine.asks) == asked


def test_a_gain_that_fresh_trials_do_not_show_is_not_confirmed():
    lab, found = searched(Machine(lambda fixes: 5.0 if fixes else 10.0))
    lab.budget.run = Machine(lambda fixes: 10.0, noise=apart(0.002, 0.01))
    final = confirm(lab, found)
    assert found.rungs[-1].cumulative.ratio > 1.9
    assert not final.confirmed
    assert final.comparison.verdict is not Verdict.FASTER
    assert final.failure is ConfirmFailure.NOT_FASTER


def test_a_ladder_that_fails_at_the_end_is_not_confirmed():
    lab, found = searched(Machine(slow_program))
    lab.budget.run = Machine(slow_program, ends={"workers=12": ("failed", "exit code 1")})
    final = confirm(lab, found)
    assert not final.confirmed
    assert (final.failure, final.detail) == (ConfirmFailure.LADDER, "exit code 1")
    assert final.comparison is None
    assert final.comparison is None


def test_an_interrupt_in_the_confirmation_is_said():
    machine = Machine(slow_program)
    lab, found = searched(machine)
    machine._stop_at = len(machine.asks) + 4
    final = confirm(lab, found)
    assert final.failure is ConfirmFailure.INTERRUPTED
    assert final.comparison is not None


@pytest.mark.parametrize(("batch", "steps"), [(32.0, 4000), (64.0, 1334)])
def test_compiling_pays_after_as_many_steps_as_make_up_for_it(batch, steps):
    fixes = {"compile=default"}
    machine = Machine(
        lambda some: 5.0 if some else 10.0,
        noise=apart(0.0, 0.0),
        compile_s=20.0,
        samples=lambda some: batch if some else 32.0,
    )
    lab = machine.pool()
    base, other = lab.fresh(()), lab.fresh(tuple(fixes))
    assert compile_payback([base], [other]) == (20.0, steps)
    assert compile_payback([other], [base]) == (None, None)


def test_compiling_that_gains_nothing_never_pays():
    machine = Machine(lambda some: 11.0 if some else 10.0, noise=apart(0.0, 0.0))
    lab = machine.pool()
    assert compile_payback([lab.fresh(())], [lab.fresh(("compile=default",))]) == (20.0, None)
