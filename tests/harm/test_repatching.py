"""What the program patches itself stays patched, and does what it would do without us."""

import types

import pytest
from bare_and_observed import bare_and_observed

from stepscope.probe.patches import Patches

MODULE_CALL = """
def scaled(self, *args, **kwargs):
    global calls
    calls += 1
    return before(self, *args, **kwargs) * 1.5

calls = 0
for number in range(30):
    if number in (2, 12, 25):
        before = nn.Module.__call__
        nn.Module.__call__ = scaled
    print(step(), calls)
    if number in (6, 20):
        nn.Module.__call__ = before
print(nn.Module.__call__ is scaled)
"""

FROM_THE_START = """
before = nn.Module.__call__
nn.Module.__call__ = lambda self, *args: before(self, *args) * 1.5
for number in range(10):
    print(step())
nn.Module.__call__ = before
for number in range(10):
    print(step())
"""

INSIDE_A_FORWARD = """
kept = nn.Module.__call__

class Odd(nn.Sequential):
    def forward(self, x):
        nn.Module.__call__ = lambda self, *args: kept(self, *args) * 1.5
        return super().forward(x)

model = Odd(*model)
for number in range(10):
    print(step())
"""

WITHOUT_CALLING_ON = """
nn.Module.__call__ = lambda self, *args: self.forward(*args) * 1.5
for number in range(10):
    print(step())
"""

OF_A_CLASS = """
class Model(nn.Sequential):
    pass

class Twice(Model):
    def __call__(self, *args):
        return super().__call__(*args) * 2

model = Twice(*model)
for number in range(12):
    print(step())
    if number == 5:
        Model.__call__ = lambda self, *args: nn.Sequential.__call__(self, *args) * 1.5
    if number == 8:
        del Model.__call__
        before = Twice.__call__
        Twice.__call__ = lambda self, *args: before(self, *args) * 3
"""

FUNCTIONS = """
import atexit

backward, zero_grad, save = torch.autograd.backward, torch.optim.Optimizer.zero_grad, torch.save
counts = dict.fromkeys(("backward", "zero_grad", "iter"), 0)

def counted(name, call):
    def counting(*args, **kwargs):
        counts[name] += 1
        return call(*args, **kwargs)
    return counting

torch.autograd.backward = counted("backward", torch.autograd.backward)
torch.optim.Optimizer.zero_grad = mine = counted("zero_grad", torch.optim.Optimizer.zero_grad)
loader = torch.utils.data.DataLoader
loader.__iter__ = counted("iter", loader.__iter__)
for number in range(12):
    for _ in loader(torch.arange(4)):
        pass
    print(step())
    if number == 8:
        torch.autograd.backward = backward
print(counts)
"""


@pytest.mark.parametrize(
    "program",
    [MODULE_CALL, FROM_THE_START, INSIDE_A_FORWARD, WITHOUT_CALLING_ON, OF_A_CLASS, FUNCTIONS],
    ids=["module_call", "from_start", "inside_forward", "replaced", "of_a_class", "functions"],
)
def test_a_program_that_patches_torch_trains_the_same(tmp_path, program):
    pair = bare_and_observed(tmp_path, program, "--no-window")
    assert pair.bare.exit_code == 0, pair.bare.stderr
    assert pair.same, pair.observed
    assert pair.problems == []


def test_what_was_put_over_a_patch_stays_when_patches_are_undone():
    module = types.ModuleType("temporary")
    module.save = module.load = original = lambda: "original"
    patches = Patches()
    for name in ("save", "save", "load"):
        patches.set(module, name, lambda: "patched")
    module.save = theirs = lambda: "theirs"
    patches.restore()
    assert module.save is theirs
    assert module.load is original


def test_what_was_taken_away_does_not_come_back():
    module = types.ModuleType("temporary")
    module.save = lambda: "original"
    patches = Patches()
    patches.set(module, "save", lambda: "patched")
    del module.save
    patches.restore()
    assert not hasattr(module, "save")
