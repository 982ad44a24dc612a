"""How much of a proof a budget holds, on a simulated machine."""

import numpy as np
import pytest
from tune_machine import Machine

from stepscope.launch.program import Program
from stepscope.measure.trial.pool import Budget, TrialPool
from stepscope.measure.trial.record import TrialRequest
from stepscope.tune.proof.prover import Prover
from stepscope.tune.request import TuneRequest

FIXES = ("amp=bf16",)


def losses(ask):
    """A loss that falls; other arithmetic moves it by its rounding."""
    rounded = np.random.default_rng([ask.seed, len(ask.fixes), ask.perturb is not None])
    off = 1e-3 * rounded.standard_normal(ask.steps) * bool(ask.fixes or ask.perturb)
    curve = 2.0 * np.exp(-np.arange(ask.steps) / 30) * (1 + 0.1 * (ask.seed % 3))
    return {"losses": tuple((curve * (1 + off)).tolist()), "what": "training"}


def far_apart(ask):
    """Losses whose end the first seeds do not tell from another."""
    found = losses(ask)
    off = 0.002 * (-1) ** ask.seed * (ask.seed < 4) * bool(ask.fixes)
    return {**found, "losses": tuple(loss + off for loss in found["losses"])}


@pytest.fixture
def proven():
    """Proves a ladder with so many seconds left; also how many trials that took, and how many of
    those serve the confirmation."""

    def prove(seconds, losses=losses):
        machine = Machine(lambda fixes: 100.0, told=losses)
        budget = Budget(machine, 1e6)
        lab = TrialPool(budget, TrialRequest(steps=40, proof=True))
        for fixes in ((), FIXES, (), FIXES):
            lab.fresh(fixes)
        request = TuneRequest(Program("train.py", (), module=False), budget_s=1e6)
        prover = Prover(budget, lab, request, lambda number: None, "float32", None)
        prover.rung(FIXES, "numeric", lab.trials(FIXES))
        made, budget.seconds = len(machine.asks), budget.spent + seconds
        proof = prover.ladder(FIXES, "numeric")
        return proof, len(machine.asks) - made, len(prover.fresh(FIXES))

    return prove


def test_with_time_enough_a_proof_has_all_its_seeds_and_steps(proven):
    proof, trials, fresh = proven(10_000.0)
    assert (proof.state, proof.steps, proof.seeds) == ("matches", 400, 3)
    assert (trials, fresh) == (9, 6)


def test_with_less_time_it_has_fewer_steps_as_long_as_they_confirm_the_speed_too(proven):
    proof, trials, fresh = proven(9 * 12.0)
    assert (proof.seeds, trials, fresh) == (3, 9, 6)
    assert 40 < proof.steps < 80


def test_with_too_little_for_that_the_confirmation_has_its_sixty_seconds_apart(proven):
    """The trials of the search are used again."""
    proof, trials, fresh = proven(89.0)
    assert (proof.state, proof.seeds, trials, fresh) == ("unclear", 1, 0, 0)
    assert proof.budget_exhausted
    assert (proof.settle.seeds, proof.settle.steps, proof.settle.trials) == (3, 40, 6)
    assert proof.settle.seconds == pytest.approx(60.0)


def test_what_stays_unclear_gets_more_seeds_where_the_budget_has_room(proven):
    proof, trials, _ = proven(10_000.0, far_apart)
    assert proof.state == "matches"
    assert (proof.seeds > 3, trials) == (True, 3 * proof.seeds)


def test_what_stays_unclear_within_the_budget_says_what_would_settle_it(proven):
    proof, trials, _ = proven(9 * 46.0, far_apart)
    assert (proof.state, proof.seeds, trials) == ("unclear", 3, 9)
    settle = proof.settle
    assert settle.seeds > 3
    assert settle.steps == 400
    assert settle.trials == 3 * (settle.seeds - 3)
    assert settle.seconds == pytest.approx(settle.trials * 46.0)
