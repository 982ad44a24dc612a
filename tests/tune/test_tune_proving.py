"""How much of a proof a budget holds, on a simulated machine."""

import numpy as np
import pytest
from tune_machine import Machine

from stepscope.launch.program import Program
from stepscope.tune.ask import Ask
from stepscope.tune.budget import Budget
from stepscope.tune.lab import Lab
from stepscope.tune.proving import Prover
from stepscope.tune.request import Request

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
    """Proves a ladder with so many seconds left; also how many trials that took."""

    def prove(seconds, losses=losses):
        machine = Machine(lambda fixes: 100.0, told=losses)
        budget = Budget(machine, 1e6)
        lab = Lab(budget, Ask(steps=40, proof=True))
        for fixes in ((), FIXES, (), FIXES):
            lab.fresh(fixes)
        request = Request(Program("train.py", (), module=False), budget_s=1e6)
        prover = Prover(budget, lab, request, lambda number: None, "float32", None)
        prover.rung(FIXES, "numeric", lab.trials(FIXES))
        made, budget.seconds = len(machine.asks), budget.spent + seconds
        return prover.ladder(FIXES, "numeric"), len(machine.asks) - made

    return prove


def test_with_time_enough_a_proof_has_all_its_seeds_and_steps(proven):
    proof, trials = proven(10_000.0)
    assert (proof.state, proof.steps, proof.seeds, trials) == ("matches", 400, 3, 9)


def test_with_less_time_it_has_fewer_steps_then_fewer_seeds(proven):
    """Sixty seconds are for the confirmation; the trials of the search are used again."""
    proof, trials = proven(60.0 + 9 * 9.7)
    assert (proof.seeds, trials) == (3, 6)
    assert 30 <= proof.steps < 40
    proof, trials = proven(60.0 + 6 * 9.7)
    assert (proof.seeds, trials) == (2, 3)


def test_without_time_it_rests_on_the_search_and_says_so(proven):
    proof, trials = proven(20.0)
    assert (proof.state, proof.seeds, trials) == ("unclear", 1, 0)
    assert proof.words.endswith("one seed only (the budget held no more)")


def test_what_stays_unclear_gets_more_seeds_where_the_budget_has_room(proven):
    proof, trials = proven(10_000.0, far_apart)
    assert (proof.seeds, trials) == (5, 15)
    proof, trials = proven(60.0 + 9 * 46.0, far_apart)
    assert (proof.state, proof.seeds, trials) == ("unclear", 3, 9)
