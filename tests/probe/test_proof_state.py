"""The state a trial ends with, in a few numbers."""

import math

import pytest
import torch
from seeded import trial

from stepscope.probe.proof.state import named_state, sketch_tensors
from stepscope.record.facts import StateFact, TensorState
from stepscope.record.kinds import EndPart


def sketched(*values) -> list[TensorState]:
    return sketch_tensors([(EndPart.WEIGHTS, str(at), value) for at, value in enumerate(values)])


def distance(one: TensorState, other: TensorState) -> float:
    pairs = zip(one.sketch, other.sketch, strict=True)
    return math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(one.sketch))


@pytest.mark.parametrize("size", [1, 3, 1000, 1 << 16, (1 << 16) + 5, (1 << 21) + 70_000])
def test_a_single_bit_changes_the_digest_wherever_it_is(size):
    values = torch.linspace(-1, 1, size)
    for at in {0, size // 2, size - 1}:
        other = values.clone()
        other.view(torch.int32)[at] ^= 1
        first, again, moved = sketched(values, values.clone(), other)
        assert first.digest == again.digest != moved.digest


def test_values_that_change_places_change_the_digest():
    values = torch.arange(1 << 18, dtype=torch.float32)
    first, flipped, rolled = sketched(values, values.flip(0), values.roll(1 << 16))
    assert len({first.digest, flipped.digest, rolled.digest}) == 3


def test_sketches_are_about_as_far_apart_as_tensors():
    generator = torch.Generator().manual_seed(3)
    for size in (100, 200_000):
        values = torch.randn(size, generator=generator)
        noise = 0.01 * torch.randn(size, generator=generator)
        for moved in (noise, torch.full((size,), 0.01)):
            one, other = sketched(values, values + moved)
            assert distance(one, other) == pytest.approx(moved.norm().item(), rel=0.8)
            assert one.norm == pytest.approx(values.norm().item(), rel=1e-5)


def test_every_dtype_and_layout_of_values_has_a_digest():
    base = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    kinds = [base.to(kind) for kind in (torch.float64, torch.bfloat16, torch.float16, torch.int8)]
    kinds += [base.bool(), base.to(torch.complex64), base.T, base.expand(3, 2, 2), 3, 0.5, True]
    states = sketched(*kinds)
    assert [one.integral for one in states] == [
        *(False, False, False, True, True, False, False, False, True, False, True)
    ]
    assert [one.count for one in states] == [4, 4, 4, 4, 4, 4, 4, 12, 1, 1, 1]
    plain, turned = sketched(base, base.T.contiguous().T)
    assert plain.digest == turned.digest
    odd = sketched(torch.tensor([1.0, torch.nan]), torch.tensor([torch.inf]))
    assert [(one.norm, one.sketch) for one in odd] == [(None, None)] * 2


def test_state_is_named_by_the_model_and_what_it_shares_counts_once():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    free = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), free], lr=0.1, momentum=0.9)
    (model(torch.randn(3, 2)).sum() + free.sum()).backward()
    optimizer.step()
    named = {(part, name) for part, name, _ in named_state([model, model[0], model], [optimizer])}
    assert named == {
        *((EndPart.WEIGHTS, n) for n in ("0.weight", "0.bias", "1.weight", "1.bias", "0.4")),
        *(
            (EndPart.BUFFERS, f"1.{n}")
            for n in ("running_mean", "running_var", "num_batches_tracked")
        ),
        *(
            (EndPart.OPTIMIZER, f"{n}.momentum_buffer")
            for n in ("0.weight", "0.bias", "1.weight", "1.bias", "0.4")
        ),
    }
    two = named_state([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)], [])
    assert [name for _, name, _ in two] == ["weight", "bias", "weight #2", "bias #2"]


TRAINS = """
    import torch

    def main():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for step in range({steps}):
            loss = model(torch.randn(4, 6)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(torch.initial_seed(), torch.get_rng_state().sum().item())

    main()
"""


def test_it_is_read_after_the_last_step_or_at_the_end_and_draws_nothing(tmp_path):
    program = TRAINS.format(steps=8)
    cut = trial(tmp_path / "cut", program, seed=0, proof=True, steps=5)
    short = trial(tmp_path / "short", TRAINS.format(steps=5), seed=0, proof=True)
    whole = trial(tmp_path / "whole", program, seed=0, proof=True)
    bare = trial(tmp_path / "bare", program, seed=0)
    states = [one.facts.all(StateFact) for one in (cut, short, whole, bare)]
    assert [[fact.step for fact in one] for one in states] == [[5], [5], [8], []]
    (five,), (same,), (eight,), _ = states
    assert five.tensors == same.tensors
    assert {one.name for one in five.tensors} >= {"0.weight", "1.running_mean", "0.weight.exp_avg"}
    digests = [{one.name: one.digest for one in fact.tensors} for fact in (five, eight)]
    assert all(digests[0][name] != digests[1][name] for name in digests[0])
    assert whole.out == bare.out
    assert whole.losses == bare.losses
