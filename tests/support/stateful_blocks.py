"""Small models whose repeated blocks draw, count, change buffers or have other effects. Each is
made anew by its function, trained for some steps, and everything it leaves is looked at."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import spectral_norm as old_spectral_norm
from torch.nn.utils import weight_norm as old_weight_norm
from torch.nn.utils.parametrizations import spectral_norm

WIDTH = 4
STEPS = 4
CALLS = [0]
TRACE: list[int] = []
TEMPERATURE = 1.0
RNG = random.Random(5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.act = nn.Tanh()


class Stack(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def block(forward, **held) -> Callable[[], nn.Module]:
    """Blocks with this forward and these attributes."""
    kind = type("Made", (Block,), {"forward": forward, "made": 0})

    def make():
        made = kind()
        for name, value in held.items():
            found = value()
            if isinstance(found, torch.Tensor) and name.startswith("buffer"):
                made.register_buffer(name, found)
            else:
                setattr(made, name, found)
        return made

    return make


def draws_from_python(self, x):
    return self.layer(x * (1 + random.random()))


def draws_from_numpy(self, x):
    return self.layer(x * (1 + float(np.random.rand())))


def draws_from_torch(self, x):
    return self.layer(x * (1 + torch.rand(())))


def draws_from_its_generator(self, x):
    return self.layer(x * (1 + torch.rand((), generator=self.generator)))


def draws_from_its_numpy(self, x):
    return self.layer(x * (1 + float(self.generator.random())))


def draws_from_its_python(self, x):
    return self.layer(x * (1 + self.generator.random()))


def draws_from_a_global(self, x):
    return self.layer(x * (1 + RNG.random()))


def counts_its_calls(self, x):
    self.calls += 1
    return self.layer(x * self.calls)


def counts_in_its_class(self, x):
    type(self).made += 1
    return self.layer(x * type(self).made)


def counts_in_a_global(self, x):
    CALLS[0] += 1
    return self.layer(x * CALLS[0])


def keeps_a_trace(self, x):
    TRACE.append(len(x))
    return self.layer(x)


def keeps_its_inputs(self, x):
    self.history.append(x.detach())
    return self.layer(x * len(self.history))


def fills_a_dictionary(self, x):
    self.stats["calls"] = self.stats.get("calls", 0) + 1
    return self.layer(x * self.stats["calls"])


def assigns_a_buffer(self, x):
    self.buffer = self.buffer * 0.9 + x.detach().mean()
    return self.layer(x + self.buffer)


def updates_a_buffer(self, x):
    self.buffer.mul_(0.9).add_(x.detach().mean())
    return self.layer(x + self.buffer.clone())


def updates_an_attribute(self, x):
    self.average.mul_(0.9).add_(x.detach().mean())
    return self.layer(x + self.average.clone())


def caches_a_table(self, x):
    if self.table is None:
        self.table = torch.arange(float(WIDTH))
    return self.layer(x + self.table)


def prints(self, x):
    print("block")
    return self.layer(x)


def changes_its_input(self, x):
    x = x.mul_(2)
    return self.layer(torch.tanh(x))


def changes_its_input_by_function(self, x):
    torch.add(x, 1, out=x) if not x.requires_grad else torch.nn.functional.relu(x, inplace=True)
    return self.act(x) + self.layer(torch.tanh(x))


def uses_a_global(self, x):
    return self.layer(x * TEMPERATURE)


def normalises(self, x):
    return self.norm(self.layer(x))


def drops(self, x):
    return self.drop(self.layer(x))


def counted_by_a_helper(self, x):
    self.meter.update()
    return self.layer(x * self.meter.total)


def computes(self, x):
    return self.act(self.layer(x)) + x


class Meter:
    def __init__(self):
        self.total = 0

    def update(self):
        self.total += 1


def _seeded(kind: Any) -> Any:
    return lambda: kind(7)


def _hooked(make, pre=False):
    """Blocks whose inner layer has a hook of the program's."""
    seen: list[int] = []

    def hook(*given):
        seen.append(1)
        return (given[1][0] * len(seen),) if pre else given[2] * len(seen)

    def hooked():
        made = make()
        if pre:
            made.layer.register_forward_pre_hook(lambda *given: hook(*given))
        else:
            made.layer.register_forward_hook(hook)
        return made

    return hooked


def _wrapped(norm):
    plain = block(computes)

    def make():
        made = plain()
        made.layer = norm(made.layer)
        return made

    return make


BLOCKS: dict[str, Callable[[], Callable[[], nn.Module]]] = {
    "draws_from_python": lambda: block(draws_from_python),
    "draws_from_numpy": lambda: block(draws_from_numpy),
    "draws_from_torch": lambda: block(draws_from_torch),
    "draws_from_its_generator": lambda: block(
        draws_from_its_generator, generator=lambda: torch.Generator().manual_seed(3)
    ),
    "draws_from_its_numpy": lambda: block(
        draws_from_its_numpy, generator=_seeded(np.random.default_rng)
    ),
    "draws_from_its_old_numpy": lambda: block(
        draws_from_its_numpy, generator=_seeded(np.random.RandomState)
    ),
    "draws_from_its_python": lambda: block(draws_from_its_python, generator=_seeded(random.Random)),
    "draws_from_a_global": lambda: block(draws_from_a_global),
    "counts_its_calls": lambda: block(counts_its_calls, calls=int),
    "counts_in_its_class": lambda: block(counts_in_its_class),
    "counts_in_a_global": lambda: block(counts_in_a_global),
    "keeps_a_trace": lambda: block(keeps_a_trace),
    "keeps_its_inputs": lambda: block(keeps_its_inputs, history=list),
    "fills_a_dictionary": lambda: block(fills_a_dictionary, stats=dict),
    "assigns_a_buffer": lambda: block(assigns_a_buffer, buffer=lambda: torch.zeros(1)),
    "updates_a_buffer": lambda: block(updates_a_buffer, buffer=lambda: torch.zeros(1)),
    "updates_an_attribute": lambda: block(updates_an_attribute, average=lambda: torch.zeros(1)),
    "caches_a_table": lambda: block(caches_a_table, table=lambda: None),
    "prints": lambda: block(prints),
    "changes_its_input": lambda: block(changes_its_input),
    "changes_its_input_by_function": lambda: block(changes_its_input_by_function),
    "uses_a_global": lambda: block(uses_a_global),
    "batch_norm": lambda: block(normalises, norm=lambda: nn.BatchNorm1d(WIDTH)),
    "batch_norm_averaging": lambda: block(
        normalises, norm=lambda: nn.BatchNorm1d(WIDTH, momentum=None)
    ),
    "instance_statistics": lambda: block(
        normalises, norm=lambda: nn.BatchNorm1d(WIDTH, affine=False)
    ),
    "dropout": lambda: block(drops, drop=lambda: nn.Dropout(0.5)),
    "alpha_dropout": lambda: block(drops, drop=lambda: nn.AlphaDropout(0.5)),
    "helper": lambda: block(counted_by_a_helper, meter=Meter),
    "hook_inside": lambda: _hooked(block(computes)),
    "hook_before_inside": lambda: _hooked(block(computes), pre=True),
    "spectral_norm": lambda: _wrapped(spectral_norm),
    "old_spectral_norm": lambda: _wrapped(old_spectral_norm),
    "old_weight_norm": lambda: _wrapped(old_weight_norm),
}
HANDLED = {
    "draws_from_python",
    "draws_from_numpy",
    "draws_from_torch",
    "draws_from_its_generator",
    "draws_from_its_numpy",
    "draws_from_its_old_numpy",
    "draws_from_its_python",
    "draws_from_a_global",
    "counts_its_calls",
    "assigns_a_buffer",
    "updates_a_buffer",
    "updates_an_attribute",
    "caches_a_table",
    "batch_norm",
    "batch_norm_averaging",
    "instance_statistics",
    "dropout",
    "alpha_dropout",
    "spectral_norm",
    "old_spectral_norm",
    "old_weight_norm",
}
"""Those of which all that matters can be put back: recomputed, and exact."""


def train(make: Callable[[], nn.Module], between: str | None = None) -> list[Any]:
    """Losses, weights, buffers and whatever else a training leaves."""
    global TEMPERATURE
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    RNG.seed(5)
    CALLS[0], TEMPERATURE = 0, 1.0
    TRACE.clear()
    model = Stack(make)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    left: list[Any] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        given = torch.randn(6 - step % 2, WIDTH)
        out = model(given)
        if between == "eval":
            model.eval()
        elif between == "global":
            TEMPERATURE += 1.0
        elif between == "input":
            given.zero_()
        out.square().mean().backward()
        model.train()
        optimizer.step()
        left.append(out.detach())
    left += [value.clone() for value in model.state_dict().values()]
    left += [torch.tensor(float(random.random())), torch.tensor(float(np.random.rand()))]
    left += [torch.rand(()), torch.tensor([CALLS[0], len(TRACE), RNG.random()])]
    for made in model.blocks:
        left.append(torch.tensor([float(getattr(made, "calls", 0)), float(type(made).made)]))
        left.append(getattr(made, "average", torch.zeros(1)).clone())
    return left
