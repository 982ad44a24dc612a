"""Operations are counted rightly, and counting leaves no trace."""

import copy

import pytest
import torch
from torch import nn

from stepscope.workloads.catalogue import find_workload
from stepscope.workloads.measure.arithmetic import flops_per_generation, flops_per_sample
from stepscope.workloads.models.build import build_model


def images(size):
    return lambda samples: torch.zeros(samples, 3, size, size)


def test_resnet50_takes_4_09_billion_products_forward_and_three_times_that_in_training():
    model = build_model(find_workload("resnet50")).model
    forward, why = flops_per_sample(model, images(224), train=False)
    assert why is None
    assert forward == pytest.approx(2 * 4.089e9, rel=0.005)
    training, _ = flops_per_sample(model, images(224), train=True)
    assert training == pytest.approx(3 * forward, rel=0.03)


def test_separable_convolutions_are_counted_by_their_groups():
    model = build_model(find_workload("efficientnet_b0")).model
    forward, why = flops_per_sample(model, images(224), train=False)
    assert why is None
    assert forward == pytest.approx(2 * 0.39e9, rel=0.03)
    training, _ = flops_per_sample(model, images(224), train=True)
    assert training == pytest.approx(3 * forward, rel=0.03)


@pytest.mark.parametrize("layer", [nn.Conv2d(6, 12, 3, groups=3), nn.ConvTranspose2d(6, 12, 3)])
def test_both_gradients_of_a_convolution_take_as_much_as_its_forward(layer):
    model = nn.Sequential(nn.Conv2d(3, 6, 1), layer)
    first, _ = flops_per_sample(nn.Conv2d(3, 6, 1), images(8), False)
    forward, _ = flops_per_sample(model, images(8), False)
    training, _ = flops_per_sample(model, images(8), True)
    assert training == 3 * forward - first  # samples need no gradient


def test_a_linear_layer_needs_no_gradient_of_the_samples():
    model = nn.Linear(10, 20)
    assert flops_per_sample(model, lambda n: torch.zeros(n, 10), False) == (400.0, None)
    assert flops_per_sample(model, lambda n: torch.zeros(n, 10), True) == (800.0, None)


def test_the_gates_of_a_recurrent_layer_are_counted():
    model = build_model(find_workload("lstm"), length=6).model
    forward, why = flops_per_sample(model, lambda n: torch.zeros(n, 6, dtype=torch.int64), False)
    gates = 4 * 256
    first, second = (128 + 256) * gates, (512 + 256) * gates
    head = 2 * 512 * 3
    assert why is None
    assert forward == 6 * 2 * 2 * (first + second) + head


def test_a_generation_is_its_prompt_and_one_call_for_each_further_token():
    model = build_model(find_workload("gpt:tiny")).model
    one, why = flops_per_generation(model, prompt=8, new_tokens=1)
    assert why is None
    parts = [flops_per_generation(model, prompt=8, new_tokens=n)[0] for n in (3, 4)]
    layers, width, vocabulary = 4, 256, 256
    for new_tokens, whole in zip((3, 4), parts, strict=True):
        looked_at = 8 + new_tokens  # a static cache is looked at in full
        token = layers * (24 * width**2 + 4 * width * looked_at) + 2 * width * vocabulary
        assert whole == pytest.approx(one + (new_tokens - 1) * token, rel=1e-6)


def test_counting_changes_neither_the_model_nor_random_numbers():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten())
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    count, why = flops_per_sample(model, images(8), train=True)
    assert why is None
    assert count > 0
    assert torch.equal(torch.rand(2), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training


class Counts(nn.Module):
    """Takes a number out of a tensor, which has none without values."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x) if x.sum().item() >= 0 else x


def test_a_model_that_looks_at_values_is_counted_with_some():
    assert flops_per_sample(Counts(), lambda n: torch.ones(n, 4), False) == (32.0, None)


def test_a_model_that_cannot_run_is_not_counted_and_says_why():
    count, why = flops_per_sample(nn.Linear(4, 4), lambda n: torch.zeros(n, 5), True)
    assert count is None
    assert "RuntimeError" in why


def test_an_observer_of_calls_and_backwards_sees_nothing_of_it(monkeypatch):
    seen = []

    def watched_call(self, *args, **kwargs):
        seen.append(type(self))
        return self._wrapped_call_impl(*args, **kwargs)

    original = torch.autograd.backward

    def watched_backward(*args, **kwargs):
        seen.append("backward")
        return original(*args, **kwargs)

    watched_backward.__wrapped__ = original
    monkeypatch.setattr(nn.Module, "__call__", watched_call)
    monkeypatch.setattr(torch.autograd, "backward", watched_backward)
    count, _ = flops_per_sample(nn.Linear(4, 4), lambda n: torch.zeros(n, 4), True)
    assert count == 64.0
    assert seen == []
    assert nn.Module.__call__ is watched_call
