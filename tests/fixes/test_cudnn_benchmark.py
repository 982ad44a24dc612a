"""cuDNN's benchmark turned on, unless the program wants the same algorithms each time."""

import pytest
import torch
from fixing import fixed

from stepscope.fixes.inspect import devices
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError


@pytest.fixture(autouse=True)
def put_back():
    yield
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = False


@pytest.fixture
def cuda(monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: True)
    monkeypatch.setattr(torch.nn.Parameter, "is_cuda", True, raising=False)


def small():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())


def test_it_is_turned_on(tmp_path, cuda):
    with fixed(tmp_path, "cudnn_benchmark") as run:
        small()(torch.zeros(1, 3, 8, 8))
        assert torch.backends.cudnn.benchmark
    said = run.fixes()["cudnn_benchmark"]
    assert (said["state"], said["kind"]) == ("applied", "numeric")
    assert said["where"] == ["the convolutions of Sequential"]


def turn_off():
    torch.backends.cudnn.benchmark = False


def ask_for_deterministic():
    torch.backends.cudnn.deterministic = True


@pytest.mark.parametrize("wish", [turn_off, ask_for_deterministic])
def test_the_programs_own_wish_is_respected(wish, tmp_path, cuda):
    with fixed(tmp_path, "cudnn_benchmark") as run:
        wish()
        small()(torch.zeros(1, 3, 8, 8))
        assert not torch.backends.cudnn.benchmark
    said = run.fixes()["cudnn_benchmark"]
    assert said["state"] == "not applicable"
    assert "test_cudnn_benchmark.py:" in said["reasons"][0]


def test_deterministic_algorithms_are_respected(tmp_path, cuda):
    torch.use_deterministic_algorithms(True)
    try:
        with fixed(tmp_path, "cudnn_benchmark") as run:
            small()(torch.zeros(1, 3, 8, 8))
            assert not torch.backends.cudnn.benchmark
    finally:
        torch.use_deterministic_algorithms(False)
    assert "deterministic" in run.fixes()["cudnn_benchmark"]["reasons"][0]


def test_a_model_without_convolutions_is_told_so(tmp_path, cuda):
    with fixed(tmp_path, "cudnn_benchmark") as run:
        torch.nn.Linear(2, 2)(torch.zeros(1, 2))
    assert run.fixes()["cudnn_benchmark"]["reasons"] == [
        "Linear has no convolutions on a CUDA device"
    ]


def test_many_shapes_are_said(tmp_path, cuda):
    model = small()
    with fixed(tmp_path, "cudnn_benchmark") as run, torch.no_grad():
        for size in range(4, 30):
            model(torch.zeros(1, 3, size, size))
    said = run.fixes()["cudnn_benchmark"]
    assert said["state"] == "applied"
    assert "more than 20 shapes" in said["reasons"][0]


def test_a_machine_without_cuda_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: False)
    with fixed(tmp_path, "cudnn_benchmark") as run:
        assert not torch.backends.cudnn.benchmark
    assert run.fixes()["cudnn_benchmark"]["reasons"] == ["no CUDA device"]


def test_its_edit_and_its_values():
    edit = fix_named("cudnn_benchmark").edit(None, "import torch")
    assert edit.before == ("torch.backends.cudnn.benchmark = True",)
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("cudnn_benchmark").parse("on")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_convolutions_agree_to_rounding(tmp_path):
    model, x = small().cuda(), torch.randn(4, 3, 32, 32, device="cuda")
    plain = model(x)
    with fixed(tmp_path, "cudnn_benchmark") as run:
        torch.testing.assert_close(model(x), plain, rtol=1e-2, atol=1e-2)
    assert run.fixes()["cudnn_benchmark"]["state"] == "applied"
