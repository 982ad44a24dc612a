"""TF32 turned on or off, whatever way the program sets it."""

import pytest
import torch
from fixing import fixed

from stepscope.fixes.inspect import devices
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError


@pytest.fixture(autouse=True)
def put_back():
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True


class OnDevice(torch.nn.Module):
    """A model that says its parameters are on a CUDA device."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def named_parameters(self, *_, **__):
        return iter([("inner", FakeParameter())])

    def forward(self, x):
        return self.inner(x)


class FakeParameter:
    is_cuda = True
    device = torch.device("cuda", 0)


@pytest.fixture
def h200(monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "T4")


def switches():
    """All of them, read both ways: none may raise."""
    return (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision() != "highest",
        torch.backends.cuda.matmul.fp32_precision == "tf32",
        torch.backends.cudnn.conv.fp32_precision == "tf32",
        torch.backends.cudnn.rnn.fp32_precision == "tf32",
    )


def set_matmul(value):
    torch.backends.cuda.matmul.allow_tf32 = value


def set_cudnn(value):
    torch.backends.cudnn.allow_tf32 = value


def set_precision(value):
    torch.set_float32_matmul_precision("high" if value else "highest")


def set_new_matmul(value):
    torch.backends.cuda.matmul.fp32_precision = "tf32" if value else "ieee"


def set_new_conv(value):
    torch.backends.cudnn.conv.fp32_precision = "tf32" if value else "ieee"


def set_generic(value):
    torch.backends.fp32_precision = "tf32" if value else "ieee"


WAYS = [set_matmul, set_cudnn, set_precision, set_new_matmul, set_new_conv, set_generic]


@pytest.mark.parametrize(("asked", "on"), [("tf32", True), ("tf32=on", True), ("tf32=off", False)])
def test_every_switch_is_set(asked, on, tmp_path, h200):
    with fixed(tmp_path, asked) as run:
        assert switches() == (on,) * 6
        OnDevice()(torch.zeros(1, 2))
    said = run.fixes()["tf32"]
    assert (said["state"], said["kind"]) == ("applied", "numeric")
    assert said["where"] == [f"OnDevice, TF32 {'on' if on else 'off'}"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("on", [True, False])
def test_the_fix_wins_over_the_program_and_says_so(way, on, tmp_path, h200):
    with fixed(tmp_path, f"tf32={'on' if on else 'off'}") as run:
        way(not on)
        assert switches() == (on,) * 6
    assert "over the program's own setting at" in run.fixes()["tf32"]["where"][0]
    assert "test_tf32.py:" in run.fixes()["tf32"]["where"][0]


def test_a_program_of_the_same_mind_is_not_talked_about(tmp_path, h200):
    with fixed(tmp_path, "tf32") as run:
        for way in WAYS:
            way(True)
        assert switches() == (True,) * 6
    assert run.fixes()["tf32"]["where"] == []


def test_an_old_device_is_told_so(tmp_path, h200, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    with fixed(tmp_path, "tf32") as run:
        OnDevice()(torch.zeros(1, 2))
    assert run.fixes()["tf32"]["reasons"] == ["T4 has no TF32"]


def test_a_model_on_the_cpu_is_told_so(tmp_path, h200):
    with fixed(tmp_path, "tf32") as run:
        torch.nn.Linear(2, 2)(torch.zeros(1, 2))
    assert run.fixes()["tf32"]["reasons"] == ["Linear is not on a CUDA device"]


def test_a_machine_without_cuda_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: False)
    with fixed(tmp_path, "tf32") as run:
        assert torch.get_float32_matmul_precision() == "highest"
    assert run.fixes()["tf32"]["reasons"] == ["no CUDA device"]


def test_its_edit_and_its_values():
    tf32 = fix_named("tf32")
    assert tf32.parse(None) == "on"
    assert tf32.edit("off", "import torch").before == (
        'torch.set_float32_matmul_precision("highest")',
        "torch.backends.cudnn.allow_tf32 = False",
    )
    with pytest.raises(UsageError, match="use on, off"):
        tf32.parse("maybe")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_products_have_fewer_digits(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(512, 512, bias=False).cuda()
    x = torch.randn(512, 512, device="cuda")
    exact = (x.double() @ model.weight.double().T).float()

    def error(asked):
        with fixed(tmp_path / asked, asked), torch.no_grad():
            torch.backends.cuda.matmul.allow_tf32 = asked == "tf32=off"
            return (model(x) - exact).abs().max().item()

    assert error("tf32=on") > 10 * error("tf32=off")
