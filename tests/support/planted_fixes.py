"""Fixes that do nothing but make the simulated steps of a program shorter."""

import math
from contextlib import contextmanager
from time import monotonic_ns

import torch
from torch import nn

from stepscope.fixes import contest, in_place
from stepscope.fixes.base import Fix
from stepscope.probe.patches import ImportWatch
from stepscope.record.facts import AutoFact
from stepscope.record.fix import Applied, FixKind, Switch, Target
from stepscope.store.json_lines import read_facts

MODEL = Target("model", "{object}")


class Clock:
    """The time, which a step moves on."""

    def __init__(self):
        self.now = 0.0

    def mark(self):
        return self.now

    def elapsed_ms(self, begin, end):
        return end - begin


class Planted(Fix):
    """A fix that does nothing to the program, and makes its steps that much shorter."""

    group = "launch"
    title = effort = "planted"
    switch = Switch.AT_STEP
    context = None

    def __init__(self, name, speedup=1.0, kind=FixKind.EXACT, called=None):
        self.name, self.speedup, self.kind, self._called = name, speedup, kind, called

    def install(self, value, context):
        self.context = context
        context.root_found(lambda module: context.applied(Applied(MODEL, "Net")))
        if self._called is not None:
            context.seams.root_called(self._called)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1))

    def forward(self, x):
        return self.layers(x)


class Program:
    """A program that trains, and the run that observes it."""

    def __init__(self, clock, fixes):
        torch.manual_seed(0)
        self.clock, self.fixes = clock, fixes
        self.net = Net()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)
        self.losses = []

    def step(self, scale=1.0):
        self.optimizer.zero_grad()
        loss = self.net(torch.randn(8, 4)).square().mean() * scale
        loss.backward()
        on = [one for one in self.fixes if one.context is not None and one.context.on]
        self.clock.now += 10.0 / math.prod(one.speedup for one in on)
        self.optimizer.step()
        self.losses.append(loss.item())

    def train(self, steps):
        for _ in range(steps):
            self.step()


class Run:
    def __init__(self, folder):
        self.folder = folder

    def facts(self, kind):
        return read_facts(self.folder / "facts.jsonl").all(kind)

    @property
    def last(self):
        return self.facts(AutoFact)[-1]


def simulate_time(monkeypatch) -> Clock:
    """Contests go by this clock."""
    found = Clock()
    monkeypatch.setattr(in_place, "HostClock", lambda: found)
    for module in (in_place, contest):
        monkeypatch.setattr(module, "monotonic_ns", lambda: int(found.now * 1e6))
    return found


@contextmanager
def observed_program(observer, clock, fixes, folder):
    """A program that an observer watches, and what is recorded of it."""
    watch = ImportWatch(monotonic_ns())
    observer.install(watch)
    watch.install()
    observer.core.compiles = False  # whatever other tests of this process have imported
    try:
        yield Program(clock, fixes), Run(folder)
    finally:
        observer.end()
