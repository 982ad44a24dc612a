"""Synchronisations dropped in the loop, and kept where something may depend on them."""

import time

import pytest
import torch
from fixing import fixed

from stepscope.fixes.inspect import devices
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError


class Cuda:
    """A torch.cuda that counts how often it is waited for."""

    def __init__(self, monkeypatch):
        self.waits = 0
        monkeypatch.setattr(devices, "cuda_here", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: tensor.dtype == torch.float32)

    def synchronize(self, device=None):
        self.waits += 1


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


def train(steps, each_step=lambda step: None):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    torch.cuda.synchronize()
    for step in range(steps):
        loss = model(torch.randn(3, 4)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        each_step(step)
        torch.cuda.synchronize()
        losses.append(loss.item())
    return losses, [p.detach() for p in model.parameters()]


def test_synchronisations_of_the_loop_are_dropped(tmp_path, cuda):
    plain = train(8)
    cuda.waits = 0
    with fixed(tmp_path, "nosync") as run:
        losses = train(8)
    assert cuda.waits == 3  # before the loop, and in the steps that are watched first
    assert plain[0] == losses[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], losses[1], strict=True))
    said = run.fixes()["nosync"]
    assert (said["state"], said["kind"]) == ("applied", "exact")
    assert "torch.cuda.synchronize at" in said["where"][0]
    assert "test_nosync.py" in said["where"][0]


def test_a_synchronisation_beside_a_clock_is_dropped_and_said(tmp_path, cuda):
    def timed(step):
        torch.cuda.synchronize()
        time.perf_counter()

    with fixed(tmp_path, "nosync") as run:
        train(5, timed)
    assert any("no longer wait" in where for where in run.fixes()["nosync"]["where"])


def test_a_librarys_synchronisation_stays(tmp_path, cuda):
    library = compile(
        "import torch\ndef wait():\n torch.cuda.synchronize()", "<frozen lib>", "exec"
    )
    names = {}
    exec(library, names)
    with fixed(tmp_path, "nosync"):
        train(5)
        before = cuda.waits
        names["wait"]()
    assert cuda.waits == before + 1


class OnDevice(torch.Tensor):
    is_cuda = True


def on_device():
    return torch.zeros(4).as_subclass(OnDevice)


HAZARDS = {
    "a non-blocking copy to the host": lambda step: torch.zeros(4).copy_(
        on_device(), non_blocking=True
    ),
    "the stream used": lambda step: torch.cuda.stream(None),
    "asking whether the device is done": lambda step: torch.cuda.Event.query(None),
    "shared with numpy": lambda step: torch.zeros(2).numpy(),
}


@pytest.mark.parametrize("what", HAZARDS)
def test_what_may_depend_on_it_keeps_it(what, tmp_path, cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda.Event, "query", lambda event: True)
    with fixed(tmp_path, "nosync") as run:
        train(6, HAZARDS[what])
    assert cuda.waits == 7
    said = run.fixes()["nosync"]
    assert said["state"] == "not applicable"
    assert what in said["reasons"][0]
    assert "test_nosync.py:" in said["reasons"][0]


def test_from_the_moment_something_may_depend_on_it_nothing_is_dropped(tmp_path, cuda):
    def late_stream(step):
        if step == 6:
            torch.cuda.stream(None)

    with fixed(tmp_path, "nosync") as run:
        train(10, late_stream)
    # one before, two watched, one made up for at step 6, then steps 6 to 9
    assert cuda.waits == 1 + 2 + 1 + 4
    assert "the stream used" in run.fixes()["nosync"]["reasons"][0]


def test_pinned_memory_that_is_filled_again_keeps_it(tmp_path, cuda):
    buffer, device = torch.zeros(4), on_device()

    def refill(step):
        buffer.fill_(step)
        device.copy_(buffer, non_blocking=True)

    with fixed(tmp_path, "nosync") as run:
        train(6, refill)
    assert cuda.waits == 7
    assert "filled again" in run.fixes()["nosync"]["reasons"][0]


def test_a_time_between_events_waits_for_them(tmp_path, cuda, monkeypatch):
    class Event:
        waited = False

        def synchronize(self):
            self.waited = True

    events = Event(), Event()
    monkeypatch.setattr(
        torch.cuda.Event, "elapsed_time", lambda a, b: 1.0 if a.waited and b.waited else None
    )
    with fixed(tmp_path, "nosync"):
        train(5)
        assert torch.cuda.Event.elapsed_time(*events) == 1.0


def test_a_machine_without_cuda_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "cuda_here", lambda: False)
    with fixed(tmp_path, "nosync") as run:
        pass
    assert run.fixes()["nosync"]["reasons"] == ["no CUDA device"]


def test_a_program_that_does_not_synchronise_is_told_so(tmp_path, cuda):
    with fixed(tmp_path, "nosync") as run:
        pass
    assert "never calls" in run.fixes()["nosync"]["reasons"][0]


def test_its_edit_and_its_values():
    assert "delete" in fix_named("nosync").edit(None, "torch.cuda.synchronize()").words
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("nosync").parse("all")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_device_losses_stay_the_same_and_times_between_events_can_be_read(tmp_path):
    def train_there():
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        losses = []
        for _ in range(10):
            start.record()
            loss = model(torch.randn(32, 64, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            end.record()
            torch.cuda.synchronize()
            assert start.elapsed_time(end) > 0
            losses.append(loss.item())
        return losses

    plain = train_there()
    with fixed(tmp_path / "plain", "nosync") as run:
        assert train_there() == plain
    assert run.fixes()["nosync"]["state"] == "applied"
    with fixed(tmp_path / "stream", "nosync") as run:
        torch.cuda.Stream()
        assert train_there() == plain
    assert "the stream made" in run.fixes()["nosync"]["reasons"][0]


def test_synchronisations_that_a_cuda_builds_clocks_time_are_dropped_too(
    tmp_path, cuda, monkeypatch
):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with fixed(tmp_path, "nosync") as run:
        train(8)
    assert cuda.waits == 3
    assert run.fixes()["nosync"]["state"] == "applied"
