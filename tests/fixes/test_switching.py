"""Fixes that are switched on and off between steps: off, everything is as it was."""

import copy

import pytest
import torch
from fixing import fixed
from torch import nn

from stepscope.fixes.inspect import devices
from stepscope.fixes.registry import all_fixes, fix_named
from stepscope.record.fix import FixState, Switch

SWITCHED = [fix.name for fix in all_fixes(quiet=True) if fix.switch is Switch.AT_STEP]
EXACT = ("lazyitem", "nosync")


@pytest.fixture(autouse=True)
def one_thread():
    """Several wait for each other in every operation where other processes use the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    """Fixes for CUDA are installed too; what they do on a CPU is to leave it alone."""
    monkeypatch.setattr(devices, "cuda_here", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(fix_named("lazyitem"), "devices", ("cuda", "cpu"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.convolution(x)).relu().mean(3).transpose(1, 2)
        x, _ = self.attention(x, x, x)
        return self.last(x.mean(1))


OPTIMIZERS = {
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=1e-2),
    "momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
}


class Training:
    """A small program, a step at a time."""

    def __init__(self, optimizer):
        torch.manual_seed(0)
        self.net = Net()
        self.optimizer = OPTIMIZERS[optimizer](self.net)
        self.total = 0.0

    def steps(self, count):
        total = 0.0
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.net(torch.randn(4, 3, 6, 6)).square().mean()
            loss.backward()
            self.optimizer.step()
            torch.cuda.synchronize()
            total += loss.item()
        self.total += float(total)

    def state(self):
        """Values, layouts and settings: all that a switch might leave different."""
        tensors = [*self.net.parameters(), *self.net.buffers()]
        tensors += [one.grad for one in self.net.parameters()]
        states = [self.optimizer.state[one] for one in self.net.parameters()]
        tensors += [value for state in states for value in state.values() if torch.is_tensor(value)]
        return (
            [(one.detach().clone(), one.stride(), one.dtype) for one in tensors],
            copy.deepcopy(self.optimizer.state_dict()["param_groups"]),
            [one._backward_hooks for one in self.net.parameters()],
            torch.get_float32_matmul_precision(),
            torch.backends.cudnn.allow_tf32,
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.cudnn.benchmark,
            torch.is_autocast_enabled("cpu"),
            float(self.total),
        )


def assert_same(one, other):
    mine, theirs = one[0], other[0]
    for (a, stride, dtype), (b, *rest) in zip(mine, theirs, strict=True):
        assert torch.equal(a, b)
        assert [stride, dtype] == rest
    assert one[1:] == other[1:]


@pytest.fixture(params=sorted(OPTIMIZERS))
def optimizer(request):
    return request.param


@pytest.fixture
def bare(optimizer):
    training = Training(optimizer)
    training.steps(30)
    return training.state()


@pytest.mark.parametrize("name", SWITCHED)
def test_installed_but_off_a_fix_changes_nothing(name, optimizer, bare, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training(optimizer)
        training.steps(30)
        assert_same(training.state(), bare)
    assert not run.off[name].outcome.applied


@pytest.mark.parametrize("name", SWITCHED)
def test_switched_on_and_off_between_steps_it_leaves_no_trace(name, optimizer, bare, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training(optimizer)
        for _ in range(10):
            training.steps(3)
            run.off[name].switch(True)
            run.off[name].switch(False)
        assert_same(training.state(), bare)


@pytest.mark.parametrize("name", EXACT)
def test_exact_fixes_switched_every_few_steps_change_no_loss(name, optimizer, bare, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training(optimizer)
        for turn in range(10):
            run.off[name].switch(turn % 2 == 0)
            training.steps(3)
        run.off[name].switch(False)
        assert_same(training.state(), bare)
        assert run.off[name].outcome.state is FixState.APPLIED


@pytest.mark.parametrize("name", [name for name in SWITCHED if name not in EXACT])
def test_after_steps_with_it_on_all_is_set_and_laid_out_as_before(name, optimizer, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training(optimizer)
        training.steps(3)
        before = training.state()
        for _ in range(10):
            run.off[name].switch(True)
            training.steps(2)
            run.off[name].switch(False)
        after = training.state()
    assert [rest for _, *rest in after[0]] == [rest for _, *rest in before[0]]
    assert after[1:-1] == before[1:-1]


@pytest.mark.parametrize("name", ["amp", "channels_last", "foreach", "fused_optimizer", "sdpa"])
def test_it_acts_while_it_is_on(name, tmp_path):
    with fixed(tmp_path, off=[name]) as run:
        training = Training("adamw")
        training.steps(3)
        assert run.off[name].outcome.state is FixState.NOT_APPLICABLE
        run.off[name].switch(True)
        training.steps(1)
        assert run.off[name].outcome.state is FixState.APPLIED or name == "sdpa"
    assert run.fixes() == {}  # what is only tried is not told of


def test_what_was_tried_is_told_of_once_it_is_kept(tmp_path):
    with fixed(tmp_path, off=["foreach"]) as run:
        training = Training("adamw")
        run.off["foreach"].switch(True)
        training.steps(1)
        run.off["foreach"].tell()
    assert run.fixes()["foreach"]["state"] == FixState.APPLIED


def test_a_model_that_was_channels_last_stays_so(tmp_path):
    with fixed(tmp_path, off=["channels_last"]) as run:
        training = Training("momentum")
        training.net.to(memory_format=torch.channels_last)
        before = training.net.convolution.weight.stride()
        training.steps(2)
        run.off["channels_last"].switch(True)
        training.steps(2)
        run.off["channels_last"].switch(False)
        assert training.net.convolution.weight.stride() == before


def test_what_the_program_sets_meanwhile_is_there_afterwards(tmp_path):
    with fixed(tmp_path, off=["tf32=off"]) as run:
        run.off["tf32=off"].switch(True)
        torch.set_float32_matmul_precision("high")
        assert torch.get_float32_matmul_precision() == "highest"
        run.off["tf32=off"].switch(False)
        assert torch.get_float32_matmul_precision() == "high"
    torch.set_float32_matmul_precision("highest")


def test_a_model_met_while_it_is_off_is_found_when_it_goes_on(tmp_path):
    found = []
    with fixed(tmp_path, off=["amp"]) as run:
        run.off["amp"].root_found(lambda module: found.append(type(module).__name__))
        training = Training("adamw")
        training.steps(2)
        assert found == []
        run.off["amp"].switch(True)
        assert found == ["Net"]
        training.steps(2)
        assert found == ["Net"]


def test_while_off_calls_pass_a_fix_by(tmp_path):
    with fixed(tmp_path, off=["lazyitem"]) as run:
        [chain] = run.off["lazyitem"]._gate.chains
        assert chain.acting == ()
        run.off["lazyitem"].switch(True)
        assert len(chain.acting) == 1
