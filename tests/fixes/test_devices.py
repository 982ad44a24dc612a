"""Whether a program can use CUDA, found out without asking the driver."""

from types import SimpleNamespace

import pytest
import torch

from stepscope.fixes.inspect import devices


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """One with a driver, and a build of torch that uses it."""
    driver = tmp_path / "nvidiactl"
    driver.touch()
    monkeypatch.setattr(devices, "_DRIVER", driver)
    monkeypatch.setattr(devices.sys, "platform", "linux")
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="13.0", hip=None))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: pytest.fail("torch was asked"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return SimpleNamespace(driver=driver)


def test_a_driver_and_a_build_that_uses_it_are_enough(machine):
    assert devices.cuda_here()


def test_a_build_without_cuda_finds_none(machine, monkeypatch):
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip=None))
    assert not devices.cuda_here()


def test_a_machine_without_a_driver_has_none(machine):
    machine.driver.unlink()
    assert not devices.cuda_here()


@pytest.mark.parametrize(
    ("visible", "here"), [("", False), ("-1", False), ("0", True), ("1,2", True)]
)
def test_hidden_devices_do_not_count(machine, monkeypatch, visible, here):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices.cuda_here() is here


@pytest.mark.parametrize("count", [0, 1])
def test_torch_is_asked_where_devices_are_found_another_way(machine, monkeypatch, count):
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=None, hip="6.4"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert devices.cuda_here() is bool(count)


def test_cuda_in_use_is_there(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    machine.driver.unlink()
    assert devices.cuda_here()
