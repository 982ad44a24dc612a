"""Models under autocast, and the loss scale of fp16."""

import copy
import pickle
from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from fixing import fixed
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from stepscope.fixes.arithmetic.loss_scaler import _FIRST
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence


class Net(nn.Module):
    """Two layers that remember the dtype between them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(8, 16), nn.Linear(16, 3)
        self.inside = None

    def forward(self, x):
        x = self.one(x).relu()
        self.inside = x.dtype
        return self.two(x)


def batches(count, size=6):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        x = torch.randn(size, 8, generator=generator)
        yield x, torch.randint(3, (size,), generator=generator)


def train(steps=6, accumulate=1, clip=None, optimizer=torch.optim.SGD, scheduled=False):
    torch.manual_seed(0)
    model = Net()
    stepper = optimizer(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(stepper, 2) if scheduled else None
    losses, norms = [], []
    for number, (x, y) in enumerate(batches(steps * accumulate)):
        loss = nn.functional.cross_entropy(model(x), y) / accumulate
        loss.backward()
        losses.append(loss.item())
        if number % accumulate == accumulate - 1:
            norms.append(model.one.weight.grad.norm().item())
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            stepper.step()
            stepper.zero_grad()
            if schedule:
                schedule.step()
    return model, losses, norms


@pytest.mark.parametrize(("asked", "dtype"), [("amp", "bfloat16"), ("amp=fp16", "float16")])
def test_products_run_in_half_and_outputs_come_back_in_float32(asked, dtype, tmp_path):
    with fixed(tmp_path, asked) as run:
        model, x = Net(), torch.randn(2, 8)
        out = model(x)
        assert model.inside == getattr(torch, dtype)
        assert out.dtype == torch.float32
        with torch.no_grad():
            assert model.eval()(x).dtype == torch.float32
            assert model.inside == getattr(torch, dtype)
        assert not torch.is_autocast_enabled("cpu")
    said = run.fixes()["amp"]
    assert (said["state"], said["kind"]) == ("applied", "numeric")
    assert said["where"] == [f"Net in {asked[-4:] if '=' in asked else 'bf16'} on cpu"]


@pytest.mark.parametrize("asked", ["amp=bf16", "amp=fp16"])
@pytest.mark.parametrize("how", [{}, {"accumulate": 3, "clip": 0.5, "scheduled": True}])
def test_training_goes_as_before_up_to_rounding(asked, how, tmp_path):
    _, plain, norms = train(**how)
    with fixed(tmp_path, asked):
        model, losses, norms_there = train(**how)
    assert losses == pytest.approx(plain, rel=0.02)
    assert norms_there == pytest.approx(norms, rel=0.1)  # gradients are never seen scaled
    assert all(p.dtype == torch.float32 for p in model.parameters())


Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True)
class Result:
    hidden: torch.Tensor
    name: str


class Returning(nn.Module):
    """Returns whatever it is told to make of its output."""

    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Linear(4, 4), make

    def forward(self, x):
        return self.make(self.layer(x))


@pytest.mark.parametrize(
    ("make", "take"),
    [
        (lambda t: (t, [t]), lambda r: r[1][0]),
        (lambda t: {"a": {"b": t}, "n": 1}, lambda r: r["a"]["b"]),
        (lambda t: Pair(t, 2), lambda r: r.a),
        (lambda t: Result(t, "x"), lambda r: r.hidden),
        (lambda t: pack_sequence([t]), lambda r: r.data),
    ],
)
def test_nested_outputs_come_back_in_float32(make, take, tmp_path):
    x = torch.randn(3, 4)
    with fixed(tmp_path, "amp"):
        result = Returning(make)(x)
    assert take(result).dtype == torch.float32
    assert type(result) is type(make(x))


def test_an_output_of_transformers_keeps_its_attributes(tmp_path):
    outputs = pytest.importorskip("transformers.modeling_outputs")
    with fixed(tmp_path, "amp"):
        result = Returning(lambda t: outputs.CausalLMOutput(loss=t.sum(), logits=t))(
            torch.randn(3, 4)
        )
    assert type(result) is outputs.CausalLMOutput
    assert result.logits.dtype == result["logits"].dtype == result[1].dtype == torch.float32


def test_recurrent_models_and_packed_sequences_work(tmp_path):
    with fixed(tmp_path, "amp"):
        packed = pack_sequence([torch.randn(4, 5), torch.randn(2, 5)])
        out, (h, c) = nn.LSTM(5, 6)(packed)
        assert isinstance(out, PackedSequence)
        assert {out.data.dtype, h.dtype, c.dtype} == {torch.float32}
        out.data.sum().backward()


def test_a_program_with_autocast_of_its_own_is_left_alone(tmp_path):
    with fixed(tmp_path, "amp=fp16") as run:
        model = Net()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(torch.randn(2, 8))
        assert model.inside == out.dtype == torch.bfloat16
        model(torch.randn(2, 8))
        assert model.inside == torch.float32
    said = run.fixes()["amp"]
    assert said["state"] == "not applicable"
    assert "autocast at" in said["reasons"][0]
    assert "test_amp.py:" in said["reasons"][0]


def test_a_program_with_a_scaler_of_its_own_is_left_alone(tmp_path):
    with fixed(tmp_path, "amp") as run:
        torch.amp.GradScaler("cpu")
        model = Net()
        model(torch.randn(2, 8))
        assert model.inside == torch.float32
    assert "a GradScaler at" in run.fixes()["amp"]["reasons"][0]


def test_autocast_turned_off_inside_a_model_does_not_count(tmp_path):
    def in_float32(t):
        with torch.autocast("cpu", enabled=False):
            return t.float().exp()

    with fixed(tmp_path, "amp") as run:
        Returning(in_float32)(torch.randn(2, 4))
    assert run.fixes()["amp"]["reasons"] == []


def test_a_model_in_half_precision_is_told_so(tmp_path):
    with fixed(tmp_path, "amp") as run:
        nn.Linear(2, 2).bfloat16()(torch.zeros(1, 2).bfloat16())
    assert "is already in bfloat16" in run.fixes()["amp"]["reasons"][0]
    assert "test_amp.py:" in run.fixes()["amp"]["reasons"][0]


def test_checkpointed_layers_bring_back_autocast_without_it_counting_as_the_programs(tmp_path):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Net):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=self.reentrant)

    for reentrant in (True, False):
        Checkpointed.reentrant = reentrant
        plain = Net()
        model = Checkpointed()
        model.load_state_dict(plain.state_dict())
        x = torch.randn(4, 8, requires_grad=True)
        plain(x).mean().backward()
        x.grad = None
        with fixed(tmp_path / str(reentrant), "amp=fp16") as run:
            model(x).mean().backward()
        torch.testing.assert_close(
            model.one.weight.grad, plain.one.weight.grad, rtol=0.02, atol=0.02
        )
        assert run.fixes()["amp"]["reasons"] == []


def small_gradients(scale=1e-9):
    """A model whose gradients are too small for float16."""
    torch.manual_seed(0)
    model = Net()
    (model(torch.randn(4, 8)) * scale).sum().backward()
    return model.one.weight.grad


def test_gradients_too_small_for_fp16_survive(tmp_path):
    plain = small_gradients()
    with fixed(tmp_path, "amp=fp16"):
        scaled = small_gradients()
    assert plain.abs().max() > 0
    torch.testing.assert_close(scaled, plain, rtol=0.05, atol=plain.abs().max().item() * 0.02)


def test_gradients_of_inputs_and_of_loose_leaves_are_not_scaled(tmp_path):
    with fixed(tmp_path, "amp=fp16"):
        model, weight = nn.Linear(4, 1, bias=False), torch.ones((), requires_grad=True)
        nn.init.ones_(model.weight)
        x = torch.ones(2, 4, requires_grad=True)
        (model(x) * weight).mean().backward()
    assert torch.equal(x.grad, torch.full((2, 4), 0.5))
    assert weight.grad.item() == 4


def overflowing(model, x):
    return model(x).sum() * 1e6


@pytest.mark.parametrize("clip", [None, nn.utils.clip_grad_value_, nn.utils.clip_grad_norm_])
def test_a_step_that_overflows_is_left_out_and_the_scale_falls(clip, tmp_path):
    with fixed(tmp_path, "amp=fp16") as run:
        model = Net()
        stepper = torch.optim.SGD(model.parameters(), lr=0.1)
        before = copy.deepcopy(model.state_dict())
        x = torch.randn(4, 8)
        overflowing(model, x).backward()
        if clip:
            clip(model.parameters(), 1.0)
        stepper.step()
        assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
        stepper.zero_grad()
        model(x).sum().mul(1e-3).backward()
        stepper.step()
        assert not torch.equal(before["one.weight"], model.one.weight)
        assert run.observer.core.steps == 2  # the one left out counts
        assert run.observer.core.skipped_updates == 1
        assert fix_named("amp")._casting.scaler.scale == _FIRST / 2


def test_of_two_optimizers_only_the_one_that_overflowed_is_held_back(tmp_path):
    with fixed(tmp_path, "amp=fp16"):
        one, two = Net(), Net()
        steppers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, two)]
        before = [m.one.weight.detach().clone() for m in (one, two)]
        x = torch.randn(4, 8)
        overflowing(one, x).backward()
        two(x).sum().mul(1e-3).backward()
        for stepper in steppers:
            stepper.step()
    assert torch.equal(before[0], one.one.weight)
    assert not torch.equal(before[1], two.one.weight)


def test_an_optimizer_given_a_closure_still_leaves_overflows_out(tmp_path):
    with fixed(tmp_path, "amp=fp16"):
        model = Net()
        stepper = torch.optim.Adam(model.parameters())
        before = model.one.weight.detach().clone()
        calls = []

        def closure(factor=1e6):
            calls.append(factor)
            stepper.zero_grad()
            loss = model(torch.ones(2, 8)).sum() * factor
            loss.backward()
            return loss

        assert stepper.step(closure) is not None
        assert torch.equal(before, model.one.weight)
        stepper.step(lambda: closure(1e-3))
        assert not torch.equal(before, model.one.weight)
        assert calls == [1e6, 1e-3]


def test_an_optimizer_that_evaluates_again_and_again_is_told_so(tmp_path):
    with fixed(tmp_path, "amp=fp16") as run:
        model = Net()
        stepper = torch.optim.LBFGS(model.parameters(), max_iter=2)
        model(torch.ones(2, 8))

        def closure():
            stepper.zero_grad()
            loss = model(torch.ones(2, 8)).square().mean()
            loss.backward()
            return loss

        stepper.step(closure)
    assert "LBFGS computes gradients inside its step" in run.fixes()["amp"]["reasons"][0]


def test_the_loss_that_is_recorded_is_not_scaled(tmp_path):
    with fixed(tmp_path, "amp=fp16") as run:
        seen = []
        run.observer.core.device.loss = lambda loss: seen.append(loss.item())
        loss = Net()(torch.ones(2, 8)).square().mean()
        loss.backward()
    assert seen == [loss.item()]


def test_models_and_optimizers_can_be_saved_and_copied(tmp_path):
    with fixed(tmp_path, "amp=fp16"):
        model, _, _ = train()
        torch.save(model, tmp_path / "model.pt")
        again = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(again.one.weight, model.one.weight)
        assert torch.equal(copy.deepcopy(model).one.weight, model.one.weight)
        pickle.dumps(model)
        fresh = Net()
        fresh.load_state_dict(model.state_dict())


def test_it_goes_with_torch_compile(tmp_path):
    with fixed(tmp_path, "amp") as run:
        model = Net()
        model.compile(backend="eager")
        out = model(torch.randn(2, 8))
        out.sum().backward()
    assert out.dtype == torch.float32
    assert run.fixes()["amp"]["state"] == "applied"


def test_gradients_of_gradients_work(tmp_path):
    with fixed(tmp_path, "amp=fp16"):
        model = Net()
        x = torch.randn(2, 8, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (slope.norm() - 1).square().backward()
    assert torch.isfinite(model.one.weight.grad).all()
    assert model.one.weight.grad.abs().max() < 100


def test_fp16_is_not_combined_with_a_cuda_graph(tmp_path):
    with fixed(tmp_path, "amp=fp16", "cuda_graph") as run:
        model = Net()
        model(torch.randn(2, 8))
    assert model.inside == torch.float32
    assert "which a CUDA graph cannot" in run.fixes()["amp"]["reasons"][0]


class Mixed(nn.Module):
    """Puts what a layer returns into a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        rows = torch.zeros(3, 4)
        rows[torch.tensor([0, 1])] = self.layer(x)
        return rows


def test_a_model_that_cannot_mix_is_explained(tmp_path):
    with fixed(tmp_path, "amp"):
        with pytest.raises(RuntimeError) as caught:
            Mixed()(torch.randn(2, 4))
        reason = sentence(fix_named("amp").explain(caught.value, "rows[where] = self.layer(x)"))
        assert fix_named("amp").explain(ValueError("other"), "x") is None
    assert reason.startswith("`rows[where] = self.layer(x)` does not support half precision")


def test_its_edit_and_its_values():
    amp = fix_named("amp")
    assert amp.parse(None) == "bf16"
    edit = amp.edit("bf16", "    out = model(x)")
    assert edit.before == ('with torch.autocast("cuda", dtype=torch.bfloat16):',)
    assert edit.line == "        out = model(x)"
    assert "GradScaler" in amp.edit("fp16", "out = model(x)").words
    with pytest.raises(UsageError, match="use bf16, fp16"):
        amp.parse("fp8")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("asked", ["amp=bf16", "amp=fp16"])
def test_on_a_device_it_trains_as_before_up_to_rounding(asked, tmp_path):
    def train_there(fused):
        torch.manual_seed(0)
        model = Net().cuda()
        stepper = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
        losses = []
        for x, y in batches(10):
            loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
            stepper.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            stepper.step()
            losses.append(loss.item())
        return model, losses

    for fused in (False, True):
        _, plain = train_there(fused)
        with fixed(tmp_path / str(fused), asked) as run:
            model, losses = train_there(fused)
        assert model.inside in (torch.bfloat16, torch.float16)
        assert losses == pytest.approx(plain, rel=0.05)
        assert run.fixes()["amp"]["state"] == "applied"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_without_bf16_fp16_is_chosen_and_said(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: False)
    with fixed(tmp_path, "amp") as run:
        model = Net().cuda()
        model(torch.randn(2, 8, device="cuda"))
    assert model.inside == torch.float16
    assert run.fixes()["amp"]["where"] == ["Net in fp16 on cuda, as this device has no bf16"]


def test_recurrent_layers_on_the_cpu_are_left_alone_in_fp16(tmp_path):
    with fixed(tmp_path, "amp=fp16") as run:
        model = nn.LSTM(4, 4)
        result, _ = model(torch.randn(3, 2, 4))
        result.sum().backward()
    assert run.fixes()["amp"]["reasons"] == [
        "LSTM has recurrent layers, which the CPU lacks in fp16: use bf16"
    ]


def test_a_scripted_model_runs_under_autocast_too(tmp_path):
    model = torch.jit.trace(nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 3)), torch.randn(2, 8))
    with fixed(tmp_path, "amp=bf16") as run:
        step = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(2, 8)).sum().backward()
            step.step()
    assert run.fixes()["amp"]["state"] == "applied"


def test_a_fix_that_fails_to_prepare_a_model_is_said_not_to_apply(tmp_path, monkeypatch):
    monkeypatch.setattr("stepscope.fixes.arithmetic.amp._refused", lambda *_: 1 / 0)
    with fixed(tmp_path, "amp=bf16") as run:
        train(steps=2)
    said = run.fixes()["amp"]
    assert said["state"] == "not applicable"
    assert said["reasons"] == ["could not be installed: ZeroDivisionError('division by zero')"]
