"""Fixes switched while a program trains on a GPU, and contests timed by its stream."""

import random

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.contest import Blocks, Contest, StreamClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
NUMERIC = ["amp", "channels_last", "cudnn_benchmark", "foreach", "fused_optimizer", "tf32"]


class Training:
    """A small convolutional net on the GPU, a step at a time."""

    def __init__(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 10),
        ).cuda()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.images = torch.randn(32, 3, 32, 32).cuda()
        self.labels = torch.randint(0, 10, (32,)).cuda()
        self.losses = []

    def step(self):
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.net(self.images), self.labels)
        loss.backward()
        self.optimizer.step()
        torch.cuda.synchronize()
        self.losses.append(loss.item())

    def steps(self, count):
        for _ in range(count):
            self.step()

    def layout(self):
        states = [self.optimizer.state[one] for one in self.net.parameters()]
        tensors = [*self.net.parameters(), *(one.grad for one in self.net.parameters())]
        tensors += [value for state in states for value in state.values()]
        settings = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        flags = [(group["foreach"], group["fused"]) for group in self.optimizer.param_groups]
        where = [(one.stride(), one.dtype, one.device) for one in tensors]
        return where, settings, torch.backends.cudnn.benchmark, flags


@pytest.fixture(autouse=True)
def repeatable():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


@pytest.fixture
def bare():
    training = Training()
    training.steps(60)
    return training.losses


@pytest.mark.parametrize("name", ["nosync", "lazyitem"])
def test_exact_fixes_switched_every_few_steps_change_no_loss(name, bare, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training()
        for turn in range(20):
            run.off[name].switch(turn % 2 == 0)
            training.steps(3)
        run.off[name].switch(False)
    assert training.losses == bare


@pytest.mark.parametrize("name", [*NUMERIC, "nosync", "lazyitem"])
def test_switched_on_and_off_between_steps_it_leaves_no_trace(name, bare, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training()
        for _ in range(10):
            training.steps(6)
            run.off[name].switch(True)
            run.off[name].switch(False)
    assert training.losses == bare


@pytest.mark.parametrize("name", NUMERIC)
def test_after_steps_with_it_on_all_is_laid_out_as_before(name, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training()
        training.steps(3)
        before = training.layout()
        counts = [state["step"].item() for state in training.optimizer.state.values()]
        for _ in range(10):
            run.off[name].switch(True)
            training.steps(2)
            run.off[name].switch(False)
        assert training.layout() == before
    after = [state["step"].item() for state in training.optimizer.state.values()]
    assert after == [count + 20 for count in counts]


def test_the_streams_clock_does_not_wait_for_the_device():
    clock, large = StreamClock(), torch.randn(8192, 8192, device="cuda")
    torch.cuda.synchronize()
    begin = clock.mark()
    for _ in range(20):
        large = large @ large * 1e-4
    end = clock.mark()
    assert clock.elapsed_ms(begin, end) is None  # the device is still at it
    torch.cuda.synchronize()
    assert clock.elapsed_ms(begin, end) > 0


def test_a_contest_timed_by_the_stream_is_decided_without_waiting():
    training, on = Training(), [False]

    def switch(now):
        on[0] = now

    contest = Contest(switch, StreamClock(), Blocks(8), random.Random(0))
    contest.begin()
    result = None
    while result is None:
        training.step()
        if not on[0]:
            training.step()
        result = contest.step_ended()
    assert result.gains
    assert on == [True]
