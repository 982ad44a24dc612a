"""One set of fixes against another: what does nothing hardly ever wins, what helps does."""

import numpy as np
import pytest
from tune_machine import Machine, apart

from stepscope.measure.contest import hold_contest
from stepscope.measure.prediction import Prediction
from stepscope.record.trial import Rejection, RejectReason, TrialStatus
from stepscope.stats.verdict import Verdict

FIX = ("pin",)


def hoping(low):
    return Prediction(low * 1.1, low, low * 1.2)


def correlated(draw, steps):
    """Noise that stays for about ten steps."""
    noise = draw.standard_normal(steps)
    for step in range(1, steps):
        noise[step] = 0.9 * noise[step - 1] + 0.19**0.5 * noise[step]
    return 1 + 0.05 * noise


def drifting(draw, steps):
    slope = 0.05 * draw.standard_normal()
    return apart(0.01)(draw, steps) * (1 + slope * np.linspace(0, 1, steps))


def long_steps(draw, steps):
    """One step of a hundred takes ten times as long."""
    return apart(0.0)(draw, steps) * np.where(draw.random(steps) < 0.01, 10, 1)


def slow_processes(draw, steps):
    """One process of fifty is a third slower."""
    return apart(0.01)(draw, steps) * (4 / 3 if draw.random() < 0.02 else 1)


def two_kinds(draw, steps):
    """Half of all processes are 5% slower."""
    return apart(0.0, 0.01)(draw, steps) * (1.05 if draw.random() < 0.5 else 1)


def bursts(draw, steps):
    """Eight workers deliver together."""
    return apart(0.01)(draw, steps) * np.where(np.arange(steps) % 8 == 0, 6.6, 0.2)


def shifting():
    """A machine that now and then becomes faster or slower by more than half."""
    factor = 1.0

    def factors(draw, steps):
        nonlocal factor
        if draw.random() < 0.15:
            factor = draw.choice([1.0, 1.6])
        return apart(0.02)(draw, steps) * factor

    return factors


NOISES = {
    "independent steps": apart(0.0),
    "correlated steps": correlated,
    "processes 1% apart": apart(0.01),
    "processes 5% apart": apart(0.05),
    "drift inside processes": drifting,
    "long steps": long_steps,
    "slow processes": slow_processes,
    "two kinds of processes": two_kinds,
    "bursts": bursts,
    "a machine that changes its speed": shifting(),
}


ENOUGH, MUCH = 500.0, 1e6
"""Seconds: what a contest may need, and more than it would mind."""


def held(noise, gain, count, seed=3, predicted=None, seconds=MUCH):
    """So many contests of a fix with a true gain; and the trials they took."""
    machine = Machine(lambda fixes: 10 / gain if fixes else 10.0, noise=noise, seed=seed)
    found = []
    for _ in range(count):
        lab = machine.pool(seconds)
        lab.more(()), lab.more(())
        found.append((hold_contest(lab, (), FIX, predicted), lab.budget.asked - 2))
        machine.trials.clear()
    return found


@pytest.mark.parametrize("noise", NOISES.values(), ids=NOISES)
def test_a_fix_that_does_nothing_is_not_accepted(noise):
    """Over 3,000 contests each, of 1,000: 2.3 with processes 5% apart, 0.7 or less with the others,
    0 where the machine changes its speed or processes are 1% apart."""
    assert sum(one.won for one, _ in held(noise, 1.0, 120)) <= 1


@pytest.mark.parametrize(
    ("gain", "share", "trials"), [(1.1, 0.95, 7), (1.2, 1.0, 4), (1.5, 1.0, 3), (4.0, 1.0, 3)]
)
def test_gains_are_found_with_few_trials_where_processes_are_one_percent_apart(gain, share, trials):
    found = held(apart(0.01), gain, 60)
    assert sum(one.won for one, _ in found) >= share * 60
    assert np.mean([used for _, used in found]) <= trials


def test_a_large_gain_that_was_predicted_needs_no_more_of_the_base():
    found = held(apart(0.01), 1.5, 20, predicted=Prediction(1.6, 1.2, 2.0))
    assert {(one.won, used) for one, used in found} == {(True, 2)}


def test_a_large_gain_that_was_not_predicted_is_held_against_a_fresh_process():
    machine = Machine(lambda _: 16.0 if len(machine.asks) <= 2 else 10.0, noise=apart(0.01))
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX, Prediction(1.05, 1.0, 1.1))
    assert not found.won
    assert len(lab.trials(())) == 3


def test_a_candidate_far_slower_than_the_base_is_ended_early_and_takes_no_further_trial():
    machine = Machine(lambda fixes: 40.0 if fixes else 10.0, noise=apart(0.01))
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX, None)
    assert (found.won, found.why) == (False, Rejection(RejectReason.FAR_SLOWER, 0.25))
    assert found.comparison.ratio == pytest.approx(0.25, rel=0.1)
    assert machine.trials[2].status is TrialStatus.FAR_SLOWER
    assert [ask.fixes for ask in machine.asks] == [(), (), FIX, ()]  # has the machine slowed?
    assert lab.trials(FIX) == []


def test_a_candidate_that_only_a_slowed_machine_makes_slow_gets_its_whole_contest():
    """Everything takes five times as long from its first trial on."""
    machine = Machine(lambda f: (8.0 if f else 10.0) * (1 if len(machine.asks) < 3 else 5))
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX, None)
    assert machine.trials[2].status is TrialStatus.FAR_SLOWER
    assert found.why is None or found.why.reason != RejectReason.FAR_SLOWER
    assert lab.trials(FIX)[0].steps == lab.request.steps


def test_trials_end_early_only_where_noise_cannot_explain_how_slow_they_are():
    machine = Machine(lambda fixes: 11.0 if fixes else 10.0, noise=apart(0.05))
    for _ in range(50):
        lab = machine.pool()
        lab.more(()), lab.more(())
        hold_contest(lab, (), FIX, None)
    ended = [one for one in machine.trials if one.status is TrialStatus.FAR_SLOWER]
    assert len(ended) <= 2


@pytest.mark.parametrize(("objective", "fix"), [("memory", "pin"), ("throughput", "batch=64")])
def test_where_step_times_alone_do_not_tell_nothing_ends_early(objective, fix):
    machine = Machine(lambda fixes: 10.0)
    lab = machine.pool(objective=objective)
    lab.more(())
    lab.more((fix,), against=())
    assert machine.asks[-1].slow_ms is None


def test_a_gain_far_beyond_a_noisy_base_takes_five_trials_at_most():
    found = held(lambda draw, steps: apart(0.15)(draw, steps), 2.5, 100)
    assert np.mean([one.won for one, _ in found]) >= 0.95
    assert np.mean([used for _, used in found]) <= 5


def test_what_is_far_slower_is_held_against_a_fresh_process_of_the_base():
    machine = Machine(
        lambda fixes: (10.0 if len(machine.asks) <= 2 else 16.0) / (1.3 if fixes else 1),
        noise=apart(0.01),
    )
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX)
    assert found.won
    assert found.comparison.ratio == pytest.approx(1.3, rel=0.05)


def test_what_is_slower_costs_one_trial():
    found = held(apart(0.01), 0.9, 20)
    assert {used for _, used in found} == {1}
    slower = (RejectReason.SLOWER_AT_ONCE, RejectReason.NOT_BETTER)
    assert all(one.why.reason in slower and one.failed is None for one, _ in found)


@pytest.mark.parametrize(("noise", "gain"), [(0.01, 1.024), (0.025, 1.03), (0.05, 1.04)])
def test_a_gain_that_five_processes_would_not_show_takes_few_trials(noise, gain):
    found = held(apart(noise), gain, 100, seconds=ENOUGH)
    assert sum(one.won for one, _ in found) <= 5
    assert np.mean([used for _, used in found]) <= 3.3
    assert any(one.why and one.why.reason is RejectReason.WITHIN_NOISE for one, _ in found)


@pytest.mark.parametrize(("seconds", "least", "most"), [(ENOUGH, 0.1, 0.4), (MUCH, 0.5, 0.8)])
def test_a_gain_of_a_fifth_among_processes_a_tenth_apart_is_found_where_the_budget_has_room(
    seconds, least, most
):
    found = held(apart(0.1), 1.2, 200, seconds=seconds)
    assert least <= np.mean([one.won for one, _ in found]) <= most
    assert max(used for _, used in found) <= (10 if seconds == ENOUGH else 20)


def test_patience_is_for_gains_of_a_tenth():
    few, many = (
        [used for _, used in held(apart(0.02), 1.04, 100, seconds=seconds)]
        for seconds in (ENOUGH, MUCH)
    )
    assert few == many


def test_a_machine_that_has_become_faster_since_the_base_was_measured_costs_two_trials():
    machine = Machine(lambda _: 11.2 if len(machine.asks) <= 2 else 10.0, noise=apart(0.005))
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX)
    assert not found.won
    assert (len(lab.trials(FIX)), len(lab.trials(()))) == (1, 3)


def test_large_gains_need_no_more_than_two_processes_and_small_ones_five():
    machine = Machine(lambda fixes: 10 / 1.08 if fixes else 10.0, noise=apart(0.001, 0.01))
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX)
    assert found.won
    assert found.comparison.verdict is Verdict.FASTER
    assert len(lab.trials(FIX)) == len(lab.trials(())) == 5


def test_trials_are_interleaved():
    machine = Machine(lambda fixes: 10 / 1.08 if fixes else 10.0, noise=apart(0.001, 0.01))
    lab = machine.pool()
    lab.more(()), lab.more(())
    hold_contest(lab, (), FIX)
    order = "".join("f" if ask.fixes else "S" for ask in machine.asks)
    assert order.startswith("SSf")
    assert "ffff" not in order
    assert order[3:].count("S") >= 2


def test_one_slow_process_does_not_refute_a_clear_prediction():
    for hoped, tried in ((None, 1), (1.15, 2), (3.0, 1)):
        machine = Machine(lambda fixes: 10.0, noise=apart(0.05, 0.01), seed=2)
        lab = machine.pool()
        lab.more(()), lab.more(())
        assert lab.floor() > 0.2
        hold_contest(lab, (), FIX, hoped and hoping(hoped))
        assert len(lab.trials(FIX)) == tried


def test_small_gains_may_be_settled_later():
    machine = Machine(lambda fixes: 9.5 if fixes else 10.0, noise=apart(0.001, 0.01))
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX, small_later=True)
    assert found.put_off
    assert not found.won
    assert len(lab.trials(FIX)) == 1
    assert hold_contest(lab, (), FIX).won


def test_a_trial_that_does_not_end_well_is_a_result():
    machine = Machine(lambda fixes: 10.0, ends={"pin": ("broke", "no `view` at train.py:3")})
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX)
    assert not found.won
    assert found.why.detail == "no `view` at train.py:3"
    assert found.failed.status == "broke"


def test_more_samples_a_step_count_as_speed():
    machine = Machine(
        lambda fixes: 15.0 if fixes else 10.0, samples=lambda fixes: 64.0 if fixes else 32.0
    )
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), ("batch=64",))
    assert found.won
    assert found.comparison.ratio == pytest.approx(4 / 3, rel=0.05)


def test_less_memory_is_accepted_after_two_processes_unless_it_is_too_slow():
    def told(ask):
        return {"peak_memory_bytes": 4e9 if ask.fixes else 8e9}

    for slower, won in ((1.02, True), (1.3, False)):
        machine = Machine(lambda fixes, by=slower: 10.0 * (by if fixes else 1), told=told)
        lab = machine.pool(objective="memory")
        lab.more(()), lab.more(())
        found = hold_contest(lab, (), ("checkpointing",))
        assert found.won is won
        assert len(lab.trials(("checkpointing",))) == 2
        assert found.comparison.ratio == 2.0


def test_energy_of_a_sample_decides_where_that_is_asked_for():
    machine = Machine(
        lambda fixes: 10.0, told=lambda ask: {"energy_j_per_step": 3.0 if ask.fixes else 6.0}
    )
    lab = machine.pool(objective="energy")
    lab.more(()), lab.more(())
    assert hold_contest(lab, (), FIX).won


def test_a_predicted_gain_is_not_given_up_for_a_machine_that_has_become_slower():
    slower = iter([1.0, 1.0] + [1.6] * 20)
    machine = Machine(
        lambda fixes: 7.0 if fixes else 10.0, noise=lambda draw, steps: np.full(steps, next(slower))
    )
    lab = machine.pool()
    lab.more(()), lab.more(())
    assert hold_contest(lab, (), FIX, hoping(1.2)).won


def test_a_predicted_gain_that_is_none_costs_two_trials():
    machine = Machine(lambda fixes: 10.5 if fixes else 10.0)
    lab = machine.pool()
    lab.more(()), lab.more(())
    found = hold_contest(lab, (), FIX, hoping(1.2))
    assert not found.won
    assert lab.budget.asked == 4
