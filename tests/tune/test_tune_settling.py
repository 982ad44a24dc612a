"""What settles an unclear proof, and that more trials do not make different training match."""

from functools import cache

import numpy as np
import pytest
from tune_machine import Machine

from stepscope.launch.program import Program
from stepscope.measure.trial.pool import Budget, TrialPool
from stepscope.measure.trial.record import ProofRecord, Trial, TrialRequest
from stepscope.record.proof import Proof, ProofReason
from stepscope.record.trial import TrialStatus
from stepscope.tune.proof.judge import MOST_SEEDS, judge_numeric
from stepscope.tune.proof.loss_statistics import LATER_LOOKS, Difference
from stepscope.tune.proof.prover import Prover
from stepscope.tune.request import TuneRequest

FIXES = ("amp=bf16",)


def training(seed: int, who: int, steps: int, growth: float, pace: float, chaos: float = 0.01):
    """Losses that fall with the noise of their batches; rounding `who` moves them, from the second
    step on, by `growth` times as much as the control's."""
    draw = np.random.default_rng([seed, 0])
    curve = 1 + np.exp(-np.arange(steps) * pace / 40) + 0.1 * draw.standard_normal(steps)
    moved = np.random.default_rng([seed, who]).standard_normal(steps) * growth * chaos
    moved[0] = 0.0
    return tuple((curve + (moved if who else 0.0)).tolist())


@cache
def judged(
    seeds: int, growth: float, pace: float = 1.0, usual: float = 1.0, first: int = 0
) -> Proof:
    """`pace` of the variant, beside the `usual` one."""
    steps = 100

    def side(who: int, growth: float, pace: float) -> list[Trial]:
        proof, found = ProofRecord(rates=(0.1,) * steps, grad_norms=(1.0,)), []
        for seed in range(first, first + seeds):
            asked = TrialRequest(steps=steps, seed=seed)
            losses = training(seed, who, steps, growth, pace)
            found.append(Trial(asked, 1, TrialStatus.OK, steps=steps, losses=losses, proof=proof))
        return found

    sides = side(0, 0.0, usual), side(1, 1.0, usual), side(2, growth, pace)
    return judge_numeric(*sides, "bfloat16", wider=LATER_LOOKS if seeds > 3 else 1.0)


def test_rounding_matches_with_few_seeds_and_with_many():
    few = [judged(3, 1.2, first=20 * turn).state for turn in range(20)]
    assert few.count("differs") == 0
    assert few.count("matches") >= 10
    assert [judged(16, 1.2, first=40 * turn).state for turn in range(20)] == ["matches"] * 20


@pytest.mark.parametrize(("growth", "pace"), [(7.0, 1.0), (7.0, 0.9), (1.0, 0.85)])
def test_different_training_never_matches_and_more_seeds_tell_it(growth, pace):
    """Losses that drift beyond rounding, though their means agree; or that fall more slowly."""
    for seeds in (3, 5, 8):
        found = [judged(seeds, growth, pace, first=20 * turn).state for turn in range(20)]
        assert "matches" not in found
    told = [judged(MOST_SEEDS, growth, pace, first=50 * turn).state for turn in range(6)]
    assert told == ["differs"] * 6


def test_a_drift_within_few_seeds_is_unclear_and_says_how_many_tell():
    found = [judged(3, 7.0, first=turn) for turn in range(0, 60, 3)]
    drifting = [one for one in found if one.because.reason is ProofReason.DRIFTS]
    assert len(drifting) >= 10
    assert {one.state for one in drifting} == {"unclear"}
    needed = [one.settle.seeds for one in drifting if one.settle.seeds is not None]
    assert len(needed) >= 10
    assert all(3 < seeds <= MOST_SEEDS for seeds in needed)


def test_the_seeds_that_are_named_are_enough_most_of_the_time():
    """Each is an estimate from three seeds, so the state after them is checked as a share."""
    unclear = [(turn, judged(3, 2.0, first=50 * turn)) for turn in range(60)]
    unclear = [(turn, one) for turn, one in unclear if one.state == "unclear" and one.settle.seeds]
    assert len(unclear) >= 5
    after = [judged(one.settle.seeds, 2.0, first=50 * turn).state for turn, one in unclear]
    assert after.count("matches") >= len(after) / 2
    assert "differs" not in after


@pytest.mark.parametrize(
    ("value", "spread", "seeds"),
    [(0.0, 0.001, 2), (0.0, 0.03, 13), (0.0, 5.0, None), (0.06, 0.03, 8), (0.0301, 0.03, None)],
)
def test_seeds_needed_follow_from_the_spread_and_the_distance_to_the_margin(value, spread, seeds):
    low, high = (-1.0, 1.0) if value == 0.0 else (value - 0.02, value + 0.02)
    known = Difference(value, low, high, 0.03, spread, 2)
    assert known.seeds_needed(MOST_SEEDS) == seeds


def test_losses_that_fall_too_little_need_more_steps_and_flat_ones_are_undecidable():
    falls = judged(3, 1.0, pace=0.06, usual=0.06)
    assert falls.because.reason is ProofReason.NO_TREND
    assert falls.settle.seeds == 3
    assert falls.settle.steps >= 150
    flat = judged(3, 1.0, pace=1e-9, usual=1e-9, first=7)
    assert flat.because.reason is ProofReason.NO_TREND
    assert flat.settle.seeds is None


def told_by(growth: float, chaos: float, ends: int | None = None):
    """What trials record, whose losses grow apart as asked; `ends`: the program's own last step."""

    def told(ask: TrialRequest):
        who, steps = 2 if ask.fixes else 1 if ask.perturb else 0, min(ends or 9999, ask.steps)
        pace = 0.2 if ends else 1.0
        losses = training(ask.seed, who, steps, growth if who == 2 else 1.0, pace, chaos)
        proof = ProofRecord(rates=(0.1,) * steps, grad_norms=(1.0,))
        return {"losses": losses, "what": "training", "proof": proof, "steps": steps}

    return told


@pytest.fixture
def prover():
    """Proves a ladder in a tune with time for three seeds: the proof, and the budget."""

    def made(growth: float, chaos: float, grant_s: float | None, ends: int | None = None):
        machine = Machine(lambda fixes: 100.0, told=told_by(growth, chaos, ends))
        budget = Budget(machine, 1e6)
        lab = TrialPool(budget, TrialRequest(steps=40, proof=True))
        for fixes in ((), FIXES, (), FIXES):
            lab.fresh(fixes)
        request = TuneRequest(Program("train.py", (), module=False), budget_s=1e6)
        prover = Prover(budget, lab, request, lambda number: None, "float32", None, grant_s)
        prover.rung(FIXES, "numeric", lab.trials(FIXES))
        budget.seconds = budget.spent + 9 * 12.0 + 1
        return prover.ladder(FIXES, "numeric"), budget

    return made


def test_a_proof_that_the_budget_left_unclear_is_settled_when_it_is_granted_more(prover):
    proof, budget = prover(1.0, 0.1, None)
    assert (proof.state, proof.seeds) == ("unclear", 3)
    assert proof.settle.seconds > budget.left
    proof, budget = prover(1.0, 0.1, 3600.0)
    assert proof.state == "matches"
    assert 3 < proof.seeds <= MOST_SEEDS
    assert proof.settle is None


def test_different_training_is_told_when_its_proof_is_granted_more(prover):
    assert prover(7.0, 0.1, None)[0].state in ("unclear", "differs")
    assert prover(7.0, 0.1, 3600.0)[0].state == "differs"


def test_a_grant_too_small_is_used_up_and_never_exceeded(prover):
    proof, budget = prover(1.0, 0.1, 100.0)
    assert proof.state == "unclear"
    assert proof.seeds > 3
    assert budget.spent <= budget.seconds


def test_an_interrupt_leaves_the_proof_made_so_far():
    """Pressed as the fourth seed begins."""
    machine = Machine(lambda fixes: 100.0, told=told_by(1.0, 0.1))
    lab = TrialPool(Budget(machine, 1e6), TrialRequest(steps=40, proof=True))
    for fixes in ((), FIXES):
        lab.fresh(fixes)
    request = TuneRequest(Program("train.py", (), module=False), budget_s=1e6)
    prover = Prover(lab.budget, lab, request, lambda number: None, "float32", None)
    machine._stop_at = len(machine.asks) + 9
    with pytest.raises(KeyboardInterrupt):
        prover.ladder(FIXES, "numeric")
    assert (prover.latest.state, prover.latest.seeds) == ("unclear", 3)
    assert prover.latest.settle.seconds > 0


def test_a_program_too_short_for_its_losses_to_fall_is_undecidable(prover):
    proof, budget = prover(1.0, 0.01, 1e5, ends=30)
    assert (proof.state, proof.because.reason) == ("unclear", ProofReason.NO_TREND)
    assert proof.steps == 30
    assert proof.settle.seeds is None
    assert budget.left > 5e4


def test_a_proof_that_cannot_be_decided_within_the_bound_ends_at_once(prover):
    proof, budget = prover(1.0, 3.0, 1e5)
    assert proof.state == "unclear"
    assert proof.settle.seeds is None
    assert budget.left > 5e4
