"""Optimizers over lists of parameters."""

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.registry import fix_named


def train(kind, **options):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = kind(model.parameters(), **options)
    for _ in range(4):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_parameters_are_updated_as_lists(tmp_path, kind, monkeypatch):
    real, calls = torch._foreach_add_, []
    monkeypatch.setattr(torch, "_foreach_add_", lambda *a, **k: calls.append(1) or real(*a, **k))
    plain, _ = train(kind, lr=0.01)
    assert not calls
    with fixed(tmp_path, "foreach") as run:
        model, optimizer = train(kind, lr=0.01)
    assert calls
    assert optimizer.param_groups[0]["foreach"] is True
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other)
    assert run.fixes()["foreach"]["kind"] == "numeric"


def test_what_the_program_sets_itself_is_left(tmp_path):
    with fixed(tmp_path, "foreach") as run:
        train(torch.optim.SGD, lr=0.1, fused=True)
        train(torch.optim.SGD, lr=0.1, foreach=False)
    reasons = run.fixes()["foreach"]["reasons"]
    assert "sets fused=True itself" in reasons[0]
    assert "sets foreach=False itself" in reasons[1]


def test_a_learning_rate_that_is_a_tensor_is_told_so(tmp_path):
    with fixed(tmp_path, "foreach") as run:
        train(torch.optim.Adam, lr=torch.tensor(0.1))
    assert "a tensor as learning rate" in run.fixes()["foreach"]["reasons"][0]


def test_its_edit():
    edit = fix_named("foreach").edit(None, "opt = SGD(net.parameters(), lr=0.1)")
    assert edit.line == "opt = SGD(net.parameters(), lr=0.1, foreach=True)"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_the_gpu_torch_chooses_it_by_itself(tmp_path):
    with fixed(tmp_path, "foreach") as run:
        w = nn.Parameter(torch.ones(3, device="cuda"))
        w.sum().backward()
        torch.optim.SGD([w], lr=0.1).step()
    assert "already uses foreach" in run.fixes()["foreach"]["reasons"][0]
