"""A training program on a clock that only moves when told, observed in the test's own process.

Its phases take what `take` says. Looking at the clock costs `look_ns` while the phase clocks are
on, which stands for what they cost, and `unclocked_look_ns` while they are off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.probe import core, device_clock, row_log, step_clocks
from stepscope.probe.observer import Observer
from stepscope.probe.patches import ImportWatch
from stepscope.probe.points import loader, root_model, training
from stepscope.record.probe_options import ProbeOptions

US, MS = 1_000, 1_000_000
START = 1_000 * MS
_READERS = (core, device_clock, row_log, step_clocks, loader, root_model, training)
USUAL = {"data": 100 * US, "forward": 400 * US, "backward": 300 * US, "optimizer": 150 * US}
USUAL |= {"other": 50 * US}


class Clock:
    """Nanoseconds, and which of them are the observer's."""

    def __init__(self) -> None:
        self.now = START
        self.spent = 0
        self.look: Callable[[], int] = lambda: 0

    def __call__(self) -> int:
        cost = self.look()
        self.now += cost
        self.spent += cost
        return self.now


class _Samples(Dataset[Any]):
    def __init__(self, count: int, pass_ns: Callable[[str, float], None], batch: int) -> None:
        self.count, self._pass, self._batch = count, pass_ns, batch

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        if index % self._batch == 0:
            self._pass("data", 1.0)
        return torch.ones(2), index


class _Waits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Any, program: Any) -> Any:
        ctx.program = program
        return value * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        ctx.program.pass_ns("backward", 1.0)
        return gradient, None


class Net(nn.Module):
    """Takes time to go forward."""

    def __init__(self, program: "TimedProgram") -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)
        object.__setattr__(self, "program", program)

    def forward(self, x: Any) -> Any:
        self.program.pass_ns("forward", 1.0)
        return self.layer(x)


class SlowSGD(torch.optim.SGD):
    """Takes time to step."""

    program: Any = None

    def step(self, closure: Any = None) -> Any:
        self.program.pass_ns("optimizer", 1.0)
        return super().step(closure)


class Stepper(torch.optim.Optimizer):
    """Takes time to step, without a step of another class inside."""

    def __init__(self, program: "TimedProgram", params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.program = program

    def step(self, closure: Any = None) -> Any:
        self.program.pass_ns("optimizer", 1.0)
        return None if closure is None else closure()


class TimedProgram:
    """A plain loop; `epoch` steps make one."""

    def __init__(self, clock: Clock, epoch: int, batch: int = 4) -> None:
        self.clock = clock
        self.took: dict[str, float] = dict.fromkeys(USUAL, 0.0)
        self.steps = 0
        self.take: Callable[[str, int], int] = lambda phase, step: USUAL[phase]
        self.loader = DataLoader(_Samples(epoch * batch, self.pass_ns, batch), batch_size=batch)
        self.net = Net(self)
        self.optimizer: torch.optim.Optimizer = Stepper(self, self.net.parameters())
        self.batches: Iterator[Any] = iter(())
        self.each: Callable[[], None] = lambda: None

    def pass_ns(self, phase: str, share: float) -> None:
        """Spend what a phase takes."""
        elapsed = int(self.take(phase, self.steps) * share)
        self.clock.now += elapsed
        self.took[phase] += elapsed

    def step(self) -> None:
        """One step of training, of the next epoch where one is over."""
        try:
            x, _ = next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            x, _ = next(self.batches)
        self.optimizer.zero_grad()
        loss = _Waits.apply(self.net(x).mean(), self)
        loss.backward()
        self.pass_ns("other", 1.0)
        self.optimizer.step()
        self.steps += 1
        self.each()

    def run(self, steps: int) -> "TimedProgram":
        for _ in range(steps):
            self.step()
        return self


class Observed:
    """The program, what observes it, and its clock."""

    def __init__(self, folder: Path, clock: Clock, options: dict[str, Any], epoch: int) -> None:
        self.folder, self.clock = folder, clock
        asked = {"window": 0, "overhead": 0.01} | options
        self.observer = Observer(ProbeOptions(str(folder), START, **asked))
        self.watch = ImportWatch(START)
        self.observer.install(self.watch)
        self.observer.core.sampler.done = True  # a thread knows nothing of this clock
        self.program = TimedProgram(clock, epoch)

    @property
    def off(self) -> bool:
        """Whether the phase clocks are."""
        return self.observer.core.log.unclocked

    def until(self, off: bool, most: int = 5000) -> None:
        """Run until the clocks are off, or on."""
        for _ in range(most):
            if self.off == off:
                return
            self.program.step()
        raise AssertionError(f"the clocks did not go {'off' if off else 'on'}")


@contextmanager
def observed(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    look_ns: int = 2 * US,
    unclocked_look_ns: int = 200,
    epoch: int = 100_000,
    **options: Any,
) -> Iterator[Observed]:
    """`with observed(tmp_path, monkeypatch) as run:` — and out of torch again at the end."""
    clock = Clock()
    for module in _READERS:
        if hasattr(module, "monotonic_ns"):
            monkeypatch.setattr(module, "monotonic_ns", clock)
    monkeypatch.setattr(step_clocks, "hook_ns", lambda: 4 * look_ns / 45)
    folder.mkdir(parents=True, exist_ok=True)
    run = Observed(folder, clock, options, epoch)
    clock.look = lambda: unclocked_look_ns if run.off else look_ns
    try:
        yield run
    finally:
        run.observer.end()
