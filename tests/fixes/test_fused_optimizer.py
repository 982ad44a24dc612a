"""Fused optimizers."""

import copy

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.registry import fix_named, parse_fixes
from stepscope.record.errors import UsageError
from stepscope.record.fix_words import sentence

KINDS = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad]


def train(make, steps=5, device="cpu", resume=None):
    """The weights after a short training, its optimizer and the losses."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = make(model.parameters())
    model.to(device)  # some programs move a model only now
    if resume is not None:
        optimizer.load_state_dict(resume)
    data = torch.randn(steps, 4, 6, generator=torch.Generator().manual_seed(1)).to(device)
    losses = []
    for x in data:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return model, optimizer, losses


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_really_is_fused(tmp_path, kind, monkeypatch):
    name = f"_fused_{kind.__name__.lower()}_"
    real, calls = getattr(torch, name), []
    monkeypatch.setattr(torch, name, lambda *a, **k: calls.append(1) or real(*a, **k))
    plain, _, _ = train(lambda p: kind(p, lr=0.01))
    assert not calls
    with fixed(tmp_path, "fused_optimizer") as run:
        model, optimizer, _ = train(lambda p: kind(p, lr=0.01))
    assert len(calls) == 5
    assert optimizer.param_groups[0]["fused"] is True
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
    told = run.fixes()["fused_optimizer"]
    assert told["kind"] == "numeric"
    assert told["where"][0].startswith(f"{kind.__name__} made at")
    assert "test_fused_optimizer.py" in told["where"][0]


def test_what_the_program_sets_itself_is_left(tmp_path):
    with fixed(tmp_path, "fused_optimizer") as run:
        _, optimizer, _ = train(lambda p: torch.optim.Adam(p, foreach=True))
        train(lambda p: torch.optim.SGD(p, lr=0.1, fused=False))
    assert optimizer.param_groups[0]["fused"] is None
    told = run.fixes()["fused_optimizer"]
    assert told["state"] == "not applicable"
    assert "the program sets foreach=True itself" in told["reasons"][0]
    assert "the program sets fused=False itself" in told["reasons"][1]


def test_optimizers_without_it_are_told_so(tmp_path):
    class Own(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {"lr": 0.1, "fused": None})

        def step(self, closure=None):
            return None

    with fixed(tmp_path, "fused_optimizer") as run:
        train(lambda p: torch.optim.RMSprop(p))
        train(Own)
        train(lambda p: torch.optim.SGD(p, lr=0.1, differentiable=True), steps=0)
    reasons = run.fixes()["fused_optimizer"]["reasons"]
    assert "torch has no fused version of it" in reasons[0]
    assert "not one of torch's own" in reasons[1]


def test_parameters_it_cannot_update_are_told_so(tmp_path):
    with fixed(tmp_path, "fused_optimizer") as run:
        w = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        optimizer = torch.optim.SGD([w], lr=0.1)
        w.abs().sum().backward()
        optimizer.step()
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        table(torch.tensor([1])).sum().backward()
        optimizer.step()
        w = nn.Parameter(torch.ones(3, 4))
        optimizer = torch.optim.SGD([w], lr=0.1)
        w.grad = torch.ones(4, 3).t()
        optimizer.step()
        assert torch.equal(w.detach(), torch.full((3, 4), 0.9))
    reasons = run.fixes()["fused_optimizer"]["reasons"]
    assert "complex64" in reasons[0]
    assert "sparse" in reasons[1]
    assert "memory layout" in reasons[2]


def test_checkpoints_go_both_ways(tmp_path):
    def make(params):
        return torch.optim.Adam(params, lr=0.01)

    _, plain, _ = train(make)
    with fixed(tmp_path, "fused_optimizer"):
        _, optimizer, _ = train(make, resume=copy.deepcopy(plain.state_dict()))
        assert optimizer.param_groups[0]["fused"] is True
        optimizer.load_state_dict(plain.state_dict())  # in the middle, as when going back
        assert optimizer.param_groups[0]["fused"] is None
        optimizer.step()
        assert optimizer.param_groups[0]["fused"] is True
        torch.save(optimizer, tmp_path / "optimizer.pt")
        saved = optimizer.state_dict()
    assert torch.load(tmp_path / "optimizer.pt", weights_only=False).param_groups[0]["fused"]
    _, resumed, _ = train(make, resume=saved)
    assert resumed.state[resumed.param_groups[0]["params"][0]]["step"] == 11


def test_groups_schedulers_and_a_grad_scaler_keep_working(tmp_path):
    def losses():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 3))
        groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters()}]
        optimizer = torch.optim.SGD(groups, lr=0.01, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
        found = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 6)).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            found.append(loss.detach())
        return torch.stack(found)

    plain = losses()
    with fixed(tmp_path, "fused_optimizer") as run:
        torch.testing.assert_close(losses(), plain)
    assert run.observer.core.steps == 4


def test_its_edit_and_its_bad_pairs():
    edit = fix_named("fused_optimizer").edit(
        None, "    opt = torch.optim.AdamW(model.parameters())"
    )
    assert edit.line == "    opt = torch.optim.AdamW(model.parameters(), fused=True)"
    assert fix_named("fused_optimizer").edit(None, "optimizer.step()").line is None
    with pytest.raises(UsageError, match="cannot be combined"):
        parse_fixes(["fused_optimizer", "foreach"])
    with pytest.raises(UsageError, match="takes no value"):
        parse_fixes(["fused_optimizer=yes"])


def test_a_kernel_that_refuses_is_explained():
    error = RuntimeError("params, grads and momentum must have same dtype, device, and layout")
    assert "laid out" in sentence(fix_named("fused_optimizer").explain(error, "optimizer.step()"))
    assert fix_named("fused_optimizer").explain(RuntimeError("other"), "") is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS[:3])
def test_it_is_fused_on_the_gpu_where_a_model_was_moved_late(tmp_path, kind):
    _, _, plain = train(lambda p: kind(p, lr=0.01), device="cuda")
    with fixed(tmp_path, "fused_optimizer") as run:
        _, optimizer, losses = train(lambda p: kind(p, lr=0.01), device="cuda")
    assert optimizer.param_groups[0]["fused"] is True
    torch.testing.assert_close(torch.stack(losses), torch.stack(plain))
    assert run.fixes()["fused_optimizer"]["state"] == "applied"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_channels_last_convolutions_are_fused_on_the_gpu(tmp_path):
    with fixed(tmp_path, "fused_optimizer") as run:
        model = nn.Sequential(nn.Conv2d(8, 8, 3), nn.Conv2d(8, 16, 1), nn.Conv2d(16, 1, 1)).cuda()
        model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        x = torch.randn(4, 8, 9, 9, device="cuda").to(memory_format=torch.channels_last)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert run.fixes()["fused_optimizer"]["state"] == "applied"
