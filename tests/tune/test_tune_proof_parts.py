"""The parts of a proof on handmade records."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from stepscope.measure.trial.record import ProofRecord, Trial, TrialRequest
from stepscope.record.errors import BrokenRun
from stepscope.record.fix import (
    LOADER,
    Applied,
    DataChange,
    FixKind,
    FixOutcome,
    FixState,
    SourceLine,
    Variation,
)
from stepscope.record.proof import Because, ProofReason, ProofState
from stepscope.record.trial import TrialStatus
from stepscope.tune.proof.effects import (
    changes_draws,
    coarsest_rounding,
    observed_kind,
    rounding_limits,
)
from stepscope.tune.proof.judge import (
    coverage,
    judge_exact,
    judge_numeric,
    judge_outputs,
    read_outputs,
)
from stepscope.tune.proof.loss_statistics import fit_curve, learning_paces, tail_difference
from stepscope.tune.proof.prover import proof_seeds, proof_steps


def trial(seed: int = 0, steps: int = 40, scale: float = 1.0, **known: Any) -> Trial:
    """Losses that fall from 2 to 1, with the noise of batches that the seed draws."""
    noise = np.random.default_rng(seed).normal(0, 0.02, steps)
    losses = (1 + np.exp(-np.arange(steps) / 10) + noise) * scale
    proof = ProofRecord(rates=(0.1,) * steps, grad_norms=(1.0, 1.0, 1.0))
    made = Trial(
        TrialRequest(steps=steps, seed=seed),
        1,
        TrialStatus.OK,
        steps=steps,
        losses=tuple(losses.tolist()),
    )
    return replace(made, proof=replace(proof, **known))


def group(scale: float = 1.0, **known: Any) -> list[Trial]:
    return [trial(seed, scale=scale, **known) for seed in range(3)]


def test_rounding_is_the_coarsest() -> None:
    assert coarsest_rounding(["workers=4", "fused_optimizer"]) == "float32"
    assert coarsest_rounding(["tf32", "compile"]) == "tfloat32"
    assert coarsest_rounding(["amp=fp16", "tf32"]) == "float16"
    assert coarsest_rounding(["tf32", "amp"]) == "bfloat16"
    assert coarsest_rounding(["tf32"], own="bfloat16") == "bfloat16"


def test_learning_rate_that_differs_is_rejected_whatever_the_losses() -> None:
    other = group(rates=[0.1] * 30 + [0.05] * 10)
    assert judge_numeric(group(), group(), other, "bfloat16").because == Because(
        ProofReason.OTHER_RATE, step=31
    )
    assert judge_exact(group()[:1] * 2, other[:1]).because.reason is ProofReason.OTHER_RATE


def test_learning_rate_kept_in_float32_is_the_same() -> None:
    other = group(rates=[float(np.float32(0.1))] * 40)
    proof = judge_exact(group(), other)
    assert (proof.state, proof.steps, proof.seeds) == ("identical", 40, 3)


def test_clipping_that_shows_only_in_gradients_is_rejected() -> None:
    proof = judge_numeric(group(), group(), group(grad_norms=[1.0, 4.0, 4.0]), "bfloat16")
    assert proof.because == Because(ProofReason.NORM, step=2, value=proof.because.value)
    assert round(proof.because.value, 3) == 3.0


def test_gradients_of_unknown_size_are_passed_over() -> None:
    for unknown in ((), (None, 1.0, 1.0), (float("nan"),)):
        proof = judge_numeric(group(), group(), group(grad_norms=unknown), "bfloat16")
        assert proof.state == "matches"
        assert "first_norm" not in proof.numbers


def test_first_loss_beyond_the_tolerance_is_rejected() -> None:
    far = judge_numeric(group(), group(), group(1.02), "bfloat16")
    assert far.because.reason is ProofReason.FIRST_LOSS
    assert judge_numeric(group(), group(), group(1.0005), "bfloat16").state != "differs"
    far = judge_numeric(group(), group(), group(1.0005), "float32")
    assert far.because.reason is ProofReason.FIRST_LOSS


def test_loss_that_is_no_number_is_rejected_and_one_not_seen_is_passed_over() -> None:
    bad, unseen = group(), group()
    bad[1] = replace(bad[1], losses=(*bad[1].losses[:20], float("nan"), *bad[1].losses[21:]))
    unseen[1] = replace(unseen[1], losses=(*unseen[1].losses[:20], None, *unseen[1].losses[21:]))
    lost = judge_numeric(group(), group(), bad, "bfloat16")
    assert lost.because == Because(ProofReason.NAN, step=21)
    assert judge_numeric(group(), group(), unseen, "bfloat16").state == "matches"


def test_fewer_steps_are_a_difference() -> None:
    short = [replace(one, losses=one.losses[:30]) for one in group()]
    proof = judge_exact(group()[:1] * 2, short)
    assert proof.because == Because(ProofReason.OTHER_LENGTH, count=30, of=40)
    assert judge_numeric(group(), group(), short, "float32").state == "differs"


def test_one_seed_that_jumps_is_not_rejected_for_it() -> None:
    """An activation on the other side of zero: 256 times the control's divergence was seen."""
    base, jumps = trial(), trial()
    losses = [loss * (1 + 3e-4 * (at > 30)) for at, loss in enumerate(base.losses) if loss]
    jumps = replace(jumps, losses=tuple(losses))
    assert judge_numeric([base], [base], [jumps], "float32").state == "unclear"
    proof = judge_numeric(group(), group(), [jumps, *group()[1:]], "float32")
    assert proof.state is not ProofState.DIFFERS


def test_one_seed_is_never_a_match() -> None:
    proof = judge_numeric(group()[:1], group()[:1], group()[:1], "float32")
    assert (proof.state, proof.because) == ("unclear", Because(ProofReason.ONE_SEED))


def test_seeds_that_differ_leave_nothing_to_compare() -> None:
    assert judge_numeric(group()[:1], (), group()[1:], "float32").state == "not proven"
    assert judge_exact(group()[:1], group()[1:]).state == "not proven"


def test_other_bits_are_unclear_until_the_baseline_was_run_twice() -> None:
    base, other = trial(), trial(scale=1 + 2**-20)
    assert judge_exact([base], [other]).state == "unclear"
    assert judge_exact([base, base], [other]).state == "differs"


def test_losses_that_are_no_number_in_both_are_identical() -> None:
    base = replace(trial(), losses=(1.0, float("nan"), None))
    assert judge_exact([base], [base]).state == "identical"


def test_pace_is_measured_where_noise_hides_it_from_the_eye() -> None:
    base = np.array([trial(seed, 100).losses for seed in range(3)], dtype=np.float64)
    at = np.arange(100)
    slower = base + np.exp(-at * 0.9 / 10) - np.exp(-at / 10)
    found = learning_paces(base, base, slower)[0]
    assert found.beyond
    assert found.value == pytest.approx(-0.1, abs=0.03)
    assert learning_paces(base, base, base)[0].within


def test_noise_is_not_taken_for_a_curve() -> None:
    false = 0
    for seed in range(200):
        losses = np.random.default_rng(seed).normal(2, 0.1, 60)
        fitted = fit_curve(losses)
        assert fitted is not None
        false += fitted.fall(60) > 5
    assert false <= 1
    assert fit_curve(np.ones(5)) is None


def test_covered_is_what_happened_in_all_trials_and_was_followed_by_a_step() -> None:
    full = trial(epochs=[10, 40], evaluations=[10], saves=[40], short_batches=[10], loads=[])
    covered, missing = coverage([full, full])
    assert covered == ("epoch end", "short last batch", "train→eval→train")
    assert missing == ("scheduler step", "save", "load")
    assert coverage([full, trial()])[0] == ()
    assert coverage([])[0] == ()


def test_other_draws_are_told_from_other_rounding() -> None:
    def did(*records: Applied, kind: FixKind = FixKind.NUMERIC) -> Trial:
        outcome = FixOutcome("workers", 4, FixState.APPLIED, kind, records)
        return replace(trial(), fixes=(outcome,))

    def varying(data: DataChange) -> Applied:
        place = SourceLine("draws/order.py", 9)
        return Applied(LOADER, place=place, varies=Variation(data, certain=False))

    plain = Applied(LOADER, place=SourceLine("draws/order.py", 9))
    assert changes_draws(did(plain, varying(DataChange.DRAWS)))
    assert changes_draws(did(varying(DataChange.SHUFFLES)))
    assert not changes_draws(did(varying(DataChange.ROUNDING)))
    assert not changes_draws(did(plain, kind=FixKind.EXACT))
    assert observed_kind(did(plain)) == "numeric"
    assert observed_kind(trial()) == "exact"


def test_a_journal_of_sentences_counts_a_fix_that_was_less_exact_than_usual() -> None:
    def told(name: str) -> Trial:
        entry = {"name": name, "value": None, "kind": "numeric", "where": ["some words"]}
        return replace(trial(), fixes=(FixOutcome.from_json(entry),))

    assert changes_draws(told("workers"))
    assert not changes_draws(told("amp"))


def test_outputs_are_held_to_the_dtype() -> None:
    values = np.linspace(-1, 1, 64, dtype=np.float32)
    base = {"values_0": values, "top1_0": np.arange(50)}
    rounded = {**base, "values_0": values * np.float32(1.003)}
    same = judge_outputs(base, base, "float32")
    assert (same.state, same.steps) == ("identical", 1)
    assert judge_outputs(base, rounded, "bfloat16").state == "matches"
    assert judge_outputs(base, rounded, "float32").state == "differs"
    assert judge_outputs(base, rounded, "bfloat16", exact=True).state == "differs"
    flipped = {**rounded, "top1_0": np.roll(np.arange(50), 1)}
    assert judge_outputs(base, flipped, "bfloat16").state == "unclear"
    assert judge_outputs(base, {**base, "values_0": values[:3]}, "float32").state == "differs"
    lost = {**base, "values_0": values * np.float32("nan")}
    assert judge_outputs(base, lost, "bfloat16").state == "differs"
    assert judge_outputs({}, {}, "float32").state == "not proven"


def test_outputs_are_read_without_pickles(tmp_path: Path) -> None:
    folders = good, bad, text, cut, missing = [tmp_path / name for name in "abcde"]
    for folder in folders:
        folder.mkdir()
    np.savez(good / "outputs.npz", values_0=np.ones(3))
    np.savez(bad / "outputs.npz", values_0=np.array([{}], dtype=object))
    (text / "outputs.npz").write_text("no archive")
    (cut / "outputs.npz").write_bytes((good / "outputs.npz").read_bytes()[:-30])
    assert read_outputs(good)["values_0"].tolist() == [1, 1, 1]
    for folder in (bad, text, cut, missing):
        with pytest.raises(BrokenRun, match="cannot be read"):
            read_outputs(folder)


def test_proof_goes_past_the_first_epoch_where_that_is_affordable() -> None:
    baseline = replace(trial(), step_ms=(100.0,) * 30, seconds=10.0)  # 6 s are no steps
    assert proof_steps(baseline, 150, budget_s=9 * 60, seeds=3) == 170
    assert proof_steps(baseline, 20, budget_s=9 * 60, seeds=3) == 100
    assert proof_steps(baseline, 5000, budget_s=9 * 26, seeds=3) == 200
    assert proof_steps(baseline, None, budget_s=1e9, seeds=3) == 400
    assert proof_steps(baseline, 5000, budget_s=1.0, seeds=3) == 30


def test_seeds_are_as_many_as_asked_for_or_as_the_budget_holds():
    """Six seconds of start and thirty steps of 100 ms: nine seconds a trial, three a seed."""
    baseline = Trial(
        TrialRequest(), 1, TrialStatus.OK, step_ms=(100.0,) * 40, steps=40, seconds=10.0
    )
    assert proof_seeds(baseline, budget_s=1e9, seeds=5) == 5
    assert proof_seeds(baseline, budget_s=3 * 27.0, seeds=5) == 3
    assert proof_seeds(baseline, budget_s=3 * 27.0 - 1, seeds=5) == 2
    assert proof_seeds(baseline, budget_s=-20.0, seeds=5) == 1


def test_losses_near_nothing_are_held_against_how_far_they_have_come_down():
    draw = np.random.default_rng(3)
    base = np.tile(np.geomspace(2.5, 1e-6, 200), (3, 1))
    control, variant = (base * (1 + 0.3 * draw.standard_normal(base.shape)) for _ in range(2))
    found = tail_difference(base, control, variant, rounding_limits("tfloat32"))
    assert found.within
    assert found.margin < 0.01
    apart = tail_difference(base, control, variant + 0.02, rounding_limits("tfloat32"))
    assert apart.beyond
