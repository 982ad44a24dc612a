"""Which trials a proof asks for."""

from collections.abc import Callable, Iterator
from dataclasses import replace as replace_how
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from tiny_training import How, train

from stepscope.measure.trial.final_state import FinalState
from stepscope.measure.trial.printed import read_printed
from stepscope.measure.trial.record import ProofRecord, Trial, TrialRequest
from stepscope.record.fix import (
    Applied,
    DataChange,
    FixKind,
    FixOutcome,
    FixState,
    Target,
    TrainingChange,
    Variation,
)
from stepscope.record.proof import Because, ProofReason
from stepscope.record.trial import TrialStatus
from stepscope.tune.proof.prove import prove

STEPS = 40
HOWS: dict[tuple[str, ...], How] = {
    (): How(),
    ("workers=4",): How(),
    ("nosync",): How(),
    ("fused_optimizer",): How(optimizer="fused"),
    ("compile",): How(order="reversed"),
    ("amp=bf16",): How(autocast=True),
    ("prefetch",): How(sabotage="stale batch"),
    ("persistent",): How(sabotage="hidden rate"),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Machine:
    """Runs trials of the tiny program and remembers what it was asked."""

    def __init__(self, change: Callable[[Trial], Trial] = lambda trial: trial) -> None:
        self.asks: list[TrialRequest] = []
        self.trials: list[Trial] = []
        self._change = change

    def __call__(self, ask: TrialRequest) -> Trial:
        assert ask.proof
        self.asks.append(ask)
        trial = train("mlp", ask.seed, replace_how(HOWS[ask.fixes], perturb=ask.perturb), ask.steps)
        trial = self._change(replace(trial, request=ask, number=len(self.asks)))
        self.trials.append(trial)
        return trial

    def told(self) -> list[tuple[tuple[str, ...], int, str | None]]:
        return [(ask.fixes, ask.seed, ask.perturb) for ask in self.asks]


def with_fix(trial: Trial, *applied: Applied, kind: FixKind = FixKind.NUMERIC) -> Trial:
    """A trial whose fix did this."""
    outcome = FixOutcome("workers", None, FixState.APPLIED, kind, applied)
    return replace(trial, fixes=(outcome,)) if trial.request.fixes else trial


def test_bits_that_agree_take_two_trials() -> None:
    machine = Machine()
    proof = prove(machine, ("workers=4",), "exact", steps=STEPS)
    assert (proof.state, proof.steps, proof.because) == ("identical", 40, None)
    assert machine.told() == [((), 0, None), (("workers=4",), 0, None)]
    assert proof.trials == (1, 2)


def test_numeric_fix_with_the_same_bits_takes_two_trials() -> None:
    machine = Machine()
    assert prove(machine, ("nosync",), "numeric", steps=STEPS).state == "identical"
    assert len(machine.asks) == 2


def test_exact_fix_with_other_bits_is_rejected_once_the_baseline_has_repeated_itself() -> None:
    machine = Machine()
    proof = prove(machine, ("compile",), "exact", steps=STEPS)
    assert proof.state == "differs"
    assert proof.because.reason is ProofReason.OTHER_LOSS
    assert machine.told() == [((), 0, None), (("compile",), 0, None), ((), 0, None)]


def test_baseline_that_does_not_repeat_itself_is_the_control_of_exact_fixes() -> None:
    """As on a GPU that adds in any order: each process rounds otherwise."""
    count = iter(range(100))

    def shaken(trial: Trial) -> Trial:
        how = replace_how(HOWS[trial.request.fixes], perturb="float32", perturb_seed=next(count))
        return replace(trial, losses=train("mlp", trial.request.seed, how, STEPS).losses)

    fine = prove(Machine(shaken), ("workers=4",), "exact", steps=STEPS)
    assert (fine.state, fine.steps, fine.seeds) == ("matches", 40, 3)
    assert prove(Machine(shaken), ("prefetch",), "exact", steps=STEPS).state == "differs"


def test_numeric_fix_takes_baseline_variant_and_control_of_each_seed() -> None:
    machine = Machine()
    proof = prove(machine, ("amp=bf16",), "numeric", steps=STEPS)
    assert (proof.state, proof.steps, proof.seeds) == ("matches", 40, 3)
    assert machine.told() == [
        (fixes, seed, perturb)
        for seed in range(3)
        for fixes, perturb in (((), None), (("amp=bf16",), None), ((), "bfloat16"))
    ]


def test_rejection_stops_after_the_first_seed() -> None:
    machine = Machine()
    assert prove(machine, ("prefetch",), "numeric", steps=STEPS).state == "differs"
    assert len(machine.asks) == 3


def test_known_trials_are_not_run_again() -> None:
    first = Machine()
    prove(first, ("compile",), "numeric", steps=STEPS)
    second = Machine()
    proof = prove(second, ("persistent",), "numeric", steps=STEPS, known=first.trials)
    assert proof.state == "differs"
    assert second.told() == [(("persistent",), 0, None)]


def draws(trial: Trial) -> Trial:
    """A trial whose workers draw otherwise."""
    return with_fix(trial, Applied(Target("loader_workers"), varies=Variation(DataChange.DRAWS)))


def test_other_random_draws_are_held_and_take_more_seeds_and_no_control_where_batches_differ():
    machine = Machine(draws)
    proof = prove(machine, ("compile",), "exact", steps=STEPS)
    each = [(fixes, seed, None) for seed in range(5) for fixes in ((), ("compile",))]
    assert machine.told() == [*each[:2], *each]
    assert [ask.draws_per_batch for ask in machine.asks] == [False] * 2 + [True] * 10
    assert (proof.state, proof.seeds, proof.by_means) == ("matches", 5, True)


def same(trial: Trial) -> Trial:
    """One that draws the same where its draws are held to the batch."""
    batches = tuple(range(trial.steps)) if trial.request.draws_per_batch else ()
    return draws(replace(trial, proof=replace(trial.proof, batches=batches)))


def test_with_draws_held_and_the_same_batches_steps_are_paired() -> None:
    machine = Machine(same)
    proof = prove(machine, ("compile",), "numeric", steps=STEPS)
    assert [
        (ask.seed, ask.perturb) for ask in machine.asks if ask.draws_per_batch and not ask.fixes
    ] == [(seed, perturb) for seed in range(3) for perturb in (None, "float32")]
    assert (proof.state, proof.seeds, proof.draws_per_batch) == ("matches", 3, True)
    assert "divergence" in proof.numbers


def test_bits_that_agree_with_draws_held_take_four_trials_and_two_if_draws_were_known() -> None:
    machine = Machine(lambda trial: same(_moved(trial)))
    proof = prove(machine, ("workers=4",), "numeric", steps=STEPS)
    assert (proof.state, len(machine.asks)) == ("identical", 4)
    assert proof.draws_per_batch
    again = Machine(lambda trial: same(_moved(trial)))
    proof = prove(again, ("workers=4",), "numeric", steps=STEPS, known=machine.trials[:2])
    assert (proof.state, [ask.draws_per_batch for ask in again.asks]) == ("identical", [True, True])


def _moved(trial: Trial) -> Trial:
    """Other losses with a fix, as by other draws, unless those are held."""
    if trial.request.draws_per_batch or not trial.request.fixes:
        return trial
    return replace(trial, losses=tuple(loss + 0.01 for loss in trial.losses if loss is not None))


def test_one_seed_of_other_draws_asks_for_nothing_more() -> None:
    machine = Machine(draws)
    assert prove(machine, ("compile",), "numeric", steps=STEPS, seeds=1).state == "unclear"
    assert [ask.draws_per_batch for ask in machine.asks] == [False, False]


def test_program_in_coarse_arithmetic_has_a_coarse_control() -> None:
    machine = Machine()
    prove(machine, ("compile",), "numeric", steps=STEPS, own="bfloat16")
    assert {ask.perturb for ask in machine.asks} == {None, "bfloat16"}


def test_semantic_fix_is_not_run_but_says_what_to_adjust() -> None:
    machine = Machine()
    proof = prove(machine, ("batch=64", "amp=bf16"), "semantic", steps=STEPS)
    assert proof.state == "changes training"
    assert proof.changes == (TrainingChange.BATCH_SIZE,)
    assert machine.asks == []


def test_variant_that_fails_is_rejected_and_one_that_does_not_apply_is_not_proven() -> None:
    def failing(status: TrialStatus) -> Callable[[Trial], Trial]:
        return lambda trial: (
            replace(trial, status=status, detail="IndexError at train.py:7")
            if trial.request.fixes
            else trial
        )

    broke = prove(Machine(failing(TrialStatus.FAILED)), ("nosync",), "exact", steps=STEPS)
    assert broke.state == "differs"
    assert broke.because.detail == "IndexError at train.py:7"
    unfit = prove(Machine(failing(TrialStatus.NOT_APPLICABLE)), ("nosync",), "exact", steps=STEPS)
    assert unfit.state == "not proven"


def test_baseline_that_fails_proves_nothing() -> None:
    machine = Machine(lambda trial: replace(trial, status=TrialStatus.TIMED_OUT, detail="hung"))
    proof = prove(machine, ("nosync",), "numeric", steps=STEPS)
    assert proof.state == "not proven"
    assert proof.because == Because(ProofReason.BASELINE_FAILED, detail="hung")


def test_program_without_losses_is_not_proven() -> None:
    machine = Machine(lambda trial: replace(trial, losses=(None,) * STEPS))
    for kind in ("exact", "numeric"):
        proof = prove(machine, ("nosync",), kind, steps=STEPS)
        assert (proof.state, proof.because.reason) == ("not proven", ProofReason.NO_LOSSES)


def test_inference_is_proven_by_its_outputs() -> None:
    kept = ProofRecord(outputs="outputs.npz")
    machine = Machine(lambda trial: replace(trial, what="inference", losses=(), proof=kept))

    def outputs(trial: Trial) -> dict[str, Any]:
        error = 0.001 if trial.request.fixes or trial.request.perturb else 0
        return {"values_0": np.arange(1.0, 9.0) * (1 + error)}

    proof = prove(machine, ("amp=bf16",), "numeric", steps=STEPS, outputs=outputs)
    assert (proof.state, proof.trials) == ("matches", (1, 2))
    exact = prove(machine, ("nosync",), "exact", steps=STEPS, outputs=outputs)
    assert exact.state == "differs"
    checked = prove(machine, ("compile",), "numeric", steps=STEPS, outputs=outputs)
    assert (checked.state, len(checked.trials)) == ("matches", 3)
    assert checked.numbers["output_limit"] == pytest.approx(0.004)


def test_inference_that_prints_something_else_is_told_from_a_baseline_that_does() -> None:
    kept = ProofRecord(outputs="outputs.npz", ending=True)

    def proven(printed: Callable[[Trial], str]) -> tuple[str, int]:
        machine = Machine(lambda trial: replace(trial, what="inference", losses=(), proof=kept))
        proof = prove(
            machine,
            ("nosync",),
            "exact",
            steps=STEPS,
            outputs=lambda _: {"values_0": np.ones(8)},
            final_states=lambda trial: FinalState(printed=read_printed(printed(trial))),
        )
        return proof.state, len(proof.trials)

    assert proven(lambda trial: "right 256") == ("identical", 2)
    assert proven(lambda trial: "right 0" if trial.request.fixes else "right 256") == ("differs", 3)
    assert proven(lambda trial: f"run {trial.number}, right 256") == ("identical", 3)


def test_inference_without_kept_outputs_is_not_proven() -> None:
    bare = ProofRecord()
    machine = Machine(lambda trial: replace(trial, what="inference", losses=(), proof=bare))
    assert prove(machine, ("nosync",), "exact", steps=STEPS).state == "not proven"
    assert prove(machine, ("nosync",), "exact", steps=STEPS, outputs=lambda _: {}).seeds == 0


def test_fix_that_may_draw_otherwise_is_unclear_by_its_means_and_still_rejected_for_its_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A compiled model's dropout draws other numbers, which no fact tells."""
    monkeypatch.setitem(HOWS, (), How(augment=0))
    monkeypatch.setitem(HOWS, ("compile",), How(augment=1))
    monkeypatch.setitem(HOWS, ("nosync",), How(augment=1))
    monkeypatch.setitem(HOWS, ("sdpa",), How(augment=1, sabotage="dropped steps"))
    machine = Machine()
    assert prove(machine, ("compile",), "numeric", steps=60).state == "unclear"
    assert len(machine.asks) == 2 * 5 + 1
    assert prove(Machine(), ("nosync",), "numeric", steps=60).state == "differs"
    slow = prove(Machine(), ("sdpa",), "numeric", steps=60)
    assert slow.because.reason is ProofReason.PACE


def test_the_first_steps_of_longer_trials_are_used_and_shorter_ones_are_not() -> None:
    first, second, third = Machine(), Machine(), Machine()
    prove(first, ("nosync",), "exact", steps=STEPS)
    short = prove(second, ("nosync",), "exact", steps=STEPS // 2, known=first.trials)
    assert (short.state, short.steps) == ("identical", STEPS // 2)
    assert second.asks == []
    prove(third, ("nosync",), "exact", steps=2 * STEPS, known=first.trials)
    assert [ask.steps for ask in third.asks] == [2 * STEPS] * 2


def test_what_came_after_the_steps_that_are_used_is_not_covered() -> None:
    def change(trial: Trial) -> Trial:
        rates = (0.1,) * 30 + (0.05,) * 10
        proof = replace(trial.proof, rates=rates, epochs=(30,), short_batches=(30,))
        return replace(trial, proof=proof)

    machine = Machine(change)
    whole = prove(machine, ("nosync",), "exact", steps=STEPS)
    part = prove(Machine(), ("nosync",), "exact", steps=20, known=machine.trials)
    assert {"epoch end", "short last batch", "scheduler step"} <= set(whole.covered)
    assert {"epoch end", "short last batch", "scheduler step"} <= set(part.not_covered)
