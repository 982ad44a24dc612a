"""Convolutions with channels last, and programs that need contiguous memory."""

import pickle

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.inspect.tensors import map_tensors
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence

LAST = torch.channels_last


class Net(nn.Module):
    """Convolutions, batch norm and dropout; `view` flattens, unless told to reshape."""

    def __init__(self, flatten="reshape"):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 16, 5)
        self.flatten = flatten
        self.seen = []

    def forward(self, x):
        x = nn.functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        self.seen.append(x.is_contiguous(memory_format=LAST))
        x = x.view(x.size(0), -1) if self.flatten == "view" else x.reshape(x.size(0), -1)
        return self.out(nn.functional.dropout(x, 0.1, self.training))


def train(flatten="reshape", optimizer=torch.optim.SGD, steps=4):
    torch.manual_seed(0)
    model = Net(flatten)
    stepper = optimizer(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        x, y = torch.randn(4 if step < 3 else 2, 3, 8, 8), torch.zeros(4 if step < 3 else 2).long()
        loss = nn.functional.cross_entropy(model(x), y)
        stepper.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        losses.append(model(torch.ones(1, 3, 8, 8)).sum().item())
    return model, losses, stepper


def test_convolutions_run_with_channels_last(tmp_path):
    _, plain, _ = train()
    with fixed(tmp_path, "channels_last") as run:
        model, losses, _ = train()
    assert all(model.seen)
    assert model.conv.weight.is_contiguous(memory_format=LAST)
    assert losses == pytest.approx(plain, rel=1e-4)
    said = run.fixes()["channels_last"]
    assert (said["state"], said["kind"], said["reasons"]) == ("applied", "numeric", [])
    assert "Net, called at" in said["where"][0]


def test_parameters_stay_the_same_objects_and_can_be_saved(tmp_path):
    with fixed(tmp_path, "channels_last"):
        model, _, stepper = train(optimizer=torch.optim.Adam)
    held = {id(p) for group in stepper.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    torch.save(model.state_dict(), tmp_path / "state.pt")
    fresh = Net()
    fresh.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(fresh.conv.weight, model.conv.weight)
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again.conv.weight, model.conv.weight)


def test_a_program_that_calls_view_goes_on_as_it_was(tmp_path):
    _, plain, _ = train("view")
    with fixed(tmp_path, "channels_last") as run:
        model, losses, _ = train("view")
    assert losses == plain  # also what dropout drew and batch norm kept
    assert model.conv.weight.is_contiguous()
    said = run.fixes()["channels_last"]
    assert said["state"] == "not applicable"
    reason = said["reasons"][0]
    assert "`x.view` at" in reason
    assert "test_channels_last.py:" in reason
    assert "use `reshape`" in reason


def test_a_program_that_calls_view_goes_on_under_autocast_too(tmp_path):
    with fixed(tmp_path / "amp", "amp"):
        _, plain, _ = train("view")
    with fixed(tmp_path / "both", "amp", "channels_last") as run:
        _, losses, _ = train("view")
    assert losses == plain
    assert run.fixes()["channels_last"]["state"] == "not applicable"


def test_the_place_is_known_when_the_model_is_compiled(tmp_path):
    with fixed(tmp_path, "channels_last") as run:
        model = Net("view")
        model.compile(backend="eager")
        assert model(torch.randn(2, 3, 8, 8)).shape == (2, 5)
    assert "`x.view` at test_channels_last.py:" in run.fixes()["channels_last"]["reasons"][0]


def test_a_compiled_model_is_given_its_inputs_as_they_are(tmp_path):
    with fixed(tmp_path, "channels_last"):
        given = []
        model = Net()
        model.compile(backend=lambda graph, inputs: given.extend(inputs) or graph)
        model(torch.randn(2, 3, 8, 8))
    images = next(one for one in given if one.shape == (2, 3, 8, 8))
    assert images.is_contiguous()
    assert all(model.seen)


def test_a_model_that_is_evaluated_in_inference_mode_first_can_be_trained(tmp_path):
    with fixed(tmp_path, "channels_last"):
        model = Net()
        with torch.inference_mode():
            born = Net()
            model(torch.randn(2, 3, 8, 8)), born(torch.randn(2, 3, 8, 8))
        model(torch.randn(2, 3, 8, 8)).sum().backward()
    assert model.conv.weight.grad is not None
    assert [net.conv.weight.is_inference() for net in (model, born)] == [False, True]
    assert all(net.conv.weight.is_contiguous(memory_format=LAST) for net in (model, born))


def test_what_a_model_returns_is_contiguous_again(tmp_path):
    with fixed(tmp_path, "channels_last"):
        features = nn.Conv2d(3, 8, 3)(torch.randn(2, 3, 8, 8))
        assert features.view(2, -1).shape == (2, 8 * 36)


def test_a_view_of_a_weight_ends_the_program_with_a_reason(tmp_path):
    channels_last = fix_named("channels_last")
    with fixed(tmp_path, "channels_last"):
        conv = nn.Conv2d(3, 8, 3)
        conv(torch.randn(2, 3, 8, 8))
        with pytest.raises(RuntimeError) as caught:
            conv.weight.view(-1)
        line = "norm = sum(p.view(-1).norm() for p in model.parameters())"
        reason = sentence(channels_last.explain(caught.value, line))
    assert reason == "`p.view` needs contiguous memory; use `reshape`"
    assert channels_last.explain(ValueError("other"), line) is None


def test_one_by_one_convolutions_have_the_strides_their_gradients_come_in(tmp_path):
    with fixed(tmp_path, "channels_last"):
        model = nn.Conv2d(8, 4, 1)
        model(torch.randn(2, 8, 5, 5))
    like = torch.empty(4, 8, 1, 1, memory_format=LAST)
    assert model.weight.stride() == like.stride() != torch.empty(4, 8, 1, 1).stride()


def test_volumes_are_rearranged_too(tmp_path):
    with fixed(tmp_path, "channels_last"):
        conv = nn.Conv3d(2, 4, 3)
        conv(torch.randn(1, 2, 4, 4, 4))
    assert conv.weight.is_contiguous(memory_format=torch.channels_last_3d)


def test_a_model_without_convolutions_is_told_so(tmp_path):
    with fixed(tmp_path, "channels_last") as run:
        nn.Linear(2, 2)(torch.zeros(1, 2))
    assert run.fixes()["channels_last"]["reasons"] == ["Linear has no 2d or 3d convolutions"]


def test_weights_that_are_computed_are_not_touched(tmp_path):
    conv = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    vectors = [buffer.clone() for buffer in conv.buffers()]
    with fixed(tmp_path, "channels_last") as run:
        conv.eval()(torch.zeros(1, 3, 8, 8))
    assert all(torch.equal(a, b) for a, b in zip(vectors, conv.buffers(), strict=True))
    assert run.fixes()["channels_last"]["state"] == "not applicable"


def test_an_optimizers_averages_follow_when_loaded(tmp_path):
    _, _, stepper = train(optimizer=torch.optim.Adam)
    saved = stepper.state_dict()
    with fixed(tmp_path, "channels_last"):
        again, _, stepper = train(optimizer=torch.optim.Adam, steps=1)
        stepper.load_state_dict(saved)
        average = stepper.state[again.conv.weight]["exp_avg"]
    assert average.is_contiguous(memory_format=LAST)
    assert torch.equal(average, saved["state"][0]["exp_avg"])


def test_several_models_and_inputs_that_want_gradients(tmp_path):
    torch.manual_seed(0)
    with fixed(tmp_path, "channels_last"):
        maker, judge = nn.ConvTranspose2d(4, 3, 4), nn.Conv2d(3, 1, 4)
        x = torch.randn(2, 4, 5, 5, requires_grad=True)
        judge(maker(x)).mean().backward()
    assert x.grad is not None
    assert maker.weight.grad.is_contiguous(memory_format=LAST)


def test_nested_values_change_only_where_a_tensor_does():
    value = {"a": [torch.zeros(1), 2], "b": (3, "x")}
    assert map_tensors(value, lambda t: t) is value
    new = map_tensors(value, lambda t: t + 1)
    assert new["a"][0].item() == 1
    assert new["b"] is value["b"]
    assert value["a"][0].item() == 0


def test_its_edit_and_its_values():
    edit = fix_named("channels_last").edit(None, "model = Net()")
    assert edit.before == ("model = model.to(memory_format=torch.channels_last)",)
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("channels_last").parse("2d")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_it_trains_the_same_and_gives_way_to_view(tmp_path):
    def train_there(flatten):
        torch.manual_seed(0)
        model = Net(flatten).cuda()
        stepper = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        losses = []
        for _ in range(4):
            loss = model(torch.randn(4, 3, 8, 8, device="cuda")).square().mean()
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            losses.append(loss.item())
        return model, losses

    _, plain = train_there("reshape")
    with fixed(tmp_path / "reshape", "channels_last"):
        model, losses = train_there("reshape")
    assert losses == pytest.approx(plain, rel=2e-2)
    assert all(model.seen)
    with fixed(tmp_path / "view", "channels_last") as run:
        model, losses = train_there("view")
    assert losses == pytest.approx(plain, rel=2e-2)
    assert "`x.view` at" in run.fixes()["channels_last"]["reasons"][0]
