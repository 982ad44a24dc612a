"""The proof on real trainings: sabotages are rejected, changes of rounding accepted."""

from collections.abc import Iterator
from functools import cache

import msgspec
import pytest
import torch
from tiny_training import How, train

from stepscope.measure.trial.record import Trial
from stepscope.record.proof import Proof, ProofReason
from stepscope.tune.proof.judge import judge_numeric

SEEDS, STEPS = 3, 50
SABOTAGES = (
    "hidden rate", "dropped steps", "hidden frozen", "shown frozen", "stale batch",
    "unclipped", "clipped scaled",
)  # fmt: skip
FLOAT32 = {
    "summed backwards": How(order="reversed"),
    "summed in halves": How(order="halves"),
    "summed in double": How(order="double"),
    "batch backwards": How(order="batch"),
    "fused optimizer": How(optimizer="fused"),
    "another rounding of weights": How(perturb="float32", perturb_seed=1),
    "a third rounding of weights": How(perturb="float32", perturb_seed=2),
}
COARSER = {
    "bfloat16": How(autocast=True),
    "bfloat16 products backwards": How(rounded="bfloat16", order="reversed"),
    "float16": How(rounded="float16"),
    "tfloat32": How(rounded="tfloat32"),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def trials(kind: str, how: How) -> tuple[Trial, ...]:
    return tuple(train(kind, seed, how, STEPS) for seed in range(SEEDS))


def judged(kind: str, how: How, dtype: str) -> Proof:
    base, control = trials(kind, How()), trials(kind, How(perturb=dtype))
    return judge_numeric(base, control, trials(kind, how), dtype)


@pytest.mark.parametrize("sabotage", SABOTAGES)
@pytest.mark.parametrize("kind", ["mlp", "cnn"])
def test_sabotage_in_float32_is_rejected(kind: str, sabotage: str) -> None:
    proof = judged(kind, How(sabotage=sabotage), "float32")
    assert proof.state == "differs", proof


@pytest.mark.parametrize("sabotage", [name for name in SABOTAGES if name != "shown frozen"])
@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_sabotage_under_bfloat16_is_rejected(kind: str, sabotage: str) -> None:
    proof = judged(kind, How(sabotage=sabotage, autocast=True), "bfloat16")
    assert proof.state == "differs", proof


@pytest.mark.parametrize("kind", ["mlp", "cnn", "residual"])
def test_a_smaller_rate_is_rejected_by_its_pace_alone(kind: str) -> None:
    """No control, no pairing of steps: other random draws leave only means over seeds."""
    variant = trials(kind, How(sabotage="hidden rate"))
    proof = judge_numeric(trials(kind, How()), (), variant, "float32", draws=True)
    assert proof.state == "differs"
    assert proof.because.reason in (ProofReason.PACE, ProofReason.UNCERTAIN_TREND)


def test_changes_of_rounding_are_accepted() -> None:
    cases = [("mlp", how, "float32") for how in FLOAT32.values()]
    cases += [("cnn", FLOAT32[name], "float32") for name in ("summed backwards", "fused optimizer")]
    cases += [("cnn", How(order="channels_last"), "float32")]
    cases += [
        (kind, how, name.split()[0])
        for kind in ("mlp", "residual")
        for name, how in COARSER.items()
    ]
    cases += [("cnn", How(autocast=True), "bfloat16"), ("cnn", How(rounded="float16"), "float16")]
    proofs = {case: judged(*case) for case in cases}
    refused = {case: proof.because for case, proof in proofs.items() if proof.state != "matches"}
    assert len(cases) >= 20
    assert len(refused) <= len(cases) // 20, refused
    assert all((proof.steps, proof.seeds) == (50, 3) for proof in proofs.values())


def test_losses_that_hardly_fall_are_unclear_under_coarse_rounding() -> None:
    """Nothing could be seen of a smaller learning rate: it is not called a match."""
    for sabotage in (None, "hidden rate"):
        proof = judged("slow", How(sabotage=sabotage, autocast=True), "bfloat16")
        assert proof.state == "unclear"


def test_losses_that_hardly_fall_match_where_differences_are_far_smaller_than_updates() -> None:
    assert judged("slow", How(order="reversed"), "float32").state == "matches"
    assert judged("slow", How(sabotage="hidden rate"), "float32").state == "differs"


def test_chaos_neither_rejects_rounding_nor_hides_a_dropped_step() -> None:
    assert judged("wild", How(autocast=True), "bfloat16").state != "differs"
    assert judged("wild", How(order="reversed"), "float32").state != "differs"
    assert judged("wild", How(sabotage="dropped steps"), "float32").state == "differs"


def test_other_random_draws_are_judged_over_seeds_and_never_rejected_for_it() -> None:
    base, other = trials("mlp", How(augment=0)), trials("mlp", How(augment=1))
    paired = judge_numeric(base, trials("mlp", How(augment=0)), other, "float32")
    assert paired.state == "differs"
    assert judge_numeric(base, (), other, "float32", draws=True).state in ("matches", "unclear")


def test_a_proof_tells_what_it_rests_on() -> None:
    proof = judged("cnn", How(optimizer="fused"), "float32")
    assert proof.covered == ("epoch end", "short last batch", "scheduler step")
    assert proof.not_covered == ("train→eval→train", "save", "load")
    assert proof.numbers["first_loss"] <= proof.numbers["first_loss_limit"]
    assert proof.numbers["divergence"] < proof.numbers["divergence_limit"]
    assert proof.numbers["pace_low"] < 0.001 < proof.numbers["pace_margin"]
    assert msgspec.json.decode(msgspec.json.encode(proof), type=Proof) == proof
