"""The control of a proof: weights rounded once, nothing else touched."""

import copy

import pytest
import torch
from seeded import trial

from stepscope.probe.proof.controls import round_once
from stepscope.record.facts import PerturbedFact

UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "tfloat32": 2.0**-11}


@pytest.mark.parametrize("rounding", ["bfloat16", "float16", "tfloat32"])
def test_coarser_roundings_keep_so_many_digits(rounding):
    values = torch.randn(1000)
    before = values.clone()
    assert round_once(values, rounding, 1)
    error = ((values - before) / before).abs()
    assert 0.2 * UNITS[rounding] < error.mean() < error.max() <= UNITS[rounding]
    if rounding != "tfloat32":
        assert torch.equal(values, before.to(getattr(torch, rounding)).float())
    again = values.clone()
    round_once(again, rounding, 1)
    assert torch.equal(again, values)


def test_tfloat32_rounds_to_even_between_two():
    step = 2.0**-10
    values = torch.tensor([1 + step / 2, 1 + 3 * step / 2, -1 - step / 2, 0.0])
    round_once(values, "tfloat32", 1)
    assert values.tolist() == [1.0, 1 + 2 * step, -1.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_no_finer_than_the_rounding_move_by_half_a_unit_on_average(dtype):
    values = torch.randn(4000).to(dtype)
    values[0] = 0.0
    before = values.clone()
    assert round_once(values, "float32", 1)
    size = {2: torch.int16, 4: torch.int32}[values.element_size()]
    moves = values.view(size).int() - before.view(size).int()
    assert {*moves.tolist()} == {-1, 0, 1}
    assert 0.45 < moves.abs().float().mean() < 0.55
    assert abs(moves.float().mean()) < 0.05
    assert values[0] == 0.0


def test_the_same_seed_moves_the_same_and_leaves_the_programs_generator_alone():
    state = torch.get_rng_state()
    first, second, other = torch.ones(100), torch.ones(100), torch.ones(100)
    for values, seed in ((first, 1), (second, 1), (other, 2)):
        round_once(values, "float32", seed)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_does_not_fit_the_coarser_dtype_stays_and_integers_are_left_alone():
    values = torch.tensor([1e6, float("nan"), float("inf"), 1.0001])
    round_once(values, "float16", 1)
    assert values[0] == 1e6
    assert values[1].isnan()
    assert values[2].isinf()
    assert values[3] == 1.0
    assert not round_once(torch.arange(3), "bfloat16", 1)


def test_weights_that_need_gradients_and_lie_otherwise_can_be_rounded():
    weight = torch.nn.Parameter(torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last))
    before = copy.deepcopy(weight)
    assert round_once(weight, "float32", 1)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(weight, before)
    assert weight.is_leaf


PROGRAM = """
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(64, 1, bias=False)
    teacher = torch.nn.Linear(64, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = teacher.weight.detach().clone(), model.weight.detach().clone()
    for step in range(4):
        inputs = torch.randn(8, 64)
        with torch.no_grad():
            targets = teacher(inputs)
        loss = (model(inputs) - targets).square().mean()
        if step == 0:
            moved = model.weight.detach()
            print((moved != kept[1]).sum().item(), torch.equal(moved.bfloat16().float(), moved))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(torch.equal(teacher.weight, kept[0]), torch.rand(1).item())
"""


@pytest.mark.slow
def test_only_what_is_trained_is_rounded_once_before_its_first_call(tmp_path):
    base = trial(tmp_path / "base", PROGRAM, seed=0)
    control = trial(tmp_path / "control", PROGRAM, seed=0, perturb="bfloat16")
    assert base.out.split()[:2] == ["0", "False"]
    changed, rounded, untouched, draw = control.out.split()
    assert int(changed) > 32
    assert (rounded, untouched) == ("True", "True")
    assert draw == base.out.split()[3]
    assert control.facts.all(PerturbedFact) == [
        PerturbedFact(model="Linear", rounding="bfloat16", parameters=1)
    ]
    pairs = list(zip(base.losses, control.losses, strict=True))
    assert all(one != other for one, other in pairs)
    assert pairs[0][0] == pytest.approx(pairs[0][1], rel=0.05)
