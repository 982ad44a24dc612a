"""An ordinary training loop whose step takes about as long as asked, on the device at hand.

One number sets the size: the batch where the step computes, the depth where it only launches.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LOG_EVERY = 50
_CLASSES = 10
_SAMPLES = 8192
_MOST_VALUES = 1 << 24  # in the data set, so that making it takes no time


@dataclass(frozen=True)
class Plan:
    """A model and its batch. `knob` names the field that calibration may change."""

    kind: str
    width: int
    depth: int
    batch: int
    knob: str
    pixels: int = 32

    def sized(self, size: int) -> "Plan":
        """The same plan with another size."""
        return Plan(**{**vars(self), self.knob: size})

    @property
    def size(self) -> int:
        """What the knob stands at."""
        return int(getattr(self, self.knob))


PLANS = {
    ("cpu", 1): Plan("mlp", width=64, depth=3, batch=8, knob="depth"),
    ("cpu", 7): Plan("residual", width=8, depth=5, batch=4, knob="batch", pixels=16),
    ("cpu", 40): Plan("residual", width=16, depth=8, batch=8, knob="batch", pixels=32),
    ("cuda", 1): Plan("mlp", width=256, depth=2, batch=16, knob="depth"),
    ("cuda", 7): Plan("residual", width=64, depth=8, batch=32, knob="depth"),
    ("cuda", 40): Plan("residual", width=128, depth=8, batch=128, knob="batch", pixels=64),
}


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.act = nn.ReLU()

    def forward(self, x: Any) -> Any:
        y = self.act(self.norm1(self.first(x)))
        return self.act(x + self.norm2(self.second(y)))


class Classifier(nn.Module):  # type: ignore[misc]
    """A stem, a body of many small modules, a head."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        body: list[Any] = []
        if plan.kind == "mlp":
            self.stem = nn.Linear(plan.width, plan.width)
            for _ in range(plan.depth):
                body += [nn.Linear(plan.width, plan.width), nn.ReLU()]
            self.pool = nn.Identity()
        else:
            self.stem = nn.Conv2d(3, plan.width, 3, padding=1)
            body += [Residual(plan.width) for _ in range(plan.depth)]
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(plan.width, _CLASSES)

    def forward(self, x: Any) -> Any:
        return self.head(self.pool(self.body(self.stem(x))))


class Training:
    """Model, data and optimizer; `step` is one ordinary iteration."""

    def __init__(self, plan: Plan, device: str) -> None:
        torch.manual_seed(0)
        shape = (plan.width,) if plan.kind == "mlp" else (3, plan.pixels, plan.pixels)
        data = TensorDataset(torch.randn(_SAMPLES, *shape), torch.randint(0, _CLASSES, (_SAMPLES,)))
        self.device = device
        self.plan = plan
        self.loader = DataLoader(data, batch_size=plan.batch, shuffle=True, drop_last=True)
        self.model = Classifier(plan).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.loss = nn.CrossEntropyLoss()
        self.steps = 0
        self.last_loss = float("nan")

    def step(self, x: Any, y: Any) -> None:
        """Train on one batch."""
        if self.device != "cpu":
            x, y = x.to(self.device), y.to(self.device)
        self.optimizer.zero_grad()
        loss = self.loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % LOG_EVERY == 0:
            self.last_loss = loss.item()

    def batches(self) -> Iterator[Any]:
        """Batches without end, epoch after epoch."""
        while True:
            yield from self.loader

    def described(self) -> dict[str, int]:
        """How large it is."""
        parameters = sum(p.numel() for p in self.model.parameters())
        return {"modules": len(list(self.model.modules())), "parameters": parameters}


def settle(device: str, cores: list[int]) -> None:
    """Pin this process to cores (an empty list: leave it), and torch to one thread on the CPU."""
    if cores:
        os.sched_setaffinity(0, cores)
    if device == "cpu":
        torch.set_num_threads(1)


def waiter(device: str) -> Callable[[], Any]:
    """A function that waits for the device, whatever is patched later."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


def calibrated(plan: Plan, device: str, ms: float) -> Plan:
    """The plan with the size whose step comes nearest to `ms` in a few trials of 0.3 s or more."""
    seen: dict[int, float] = {}
    size = plan.size
    for _ in range(5):
        if size in seen:
            break
        seen[size] = _step_ms(plan.sized(size), device)
        size = _next_size(seen, ms)
    return plan.sized(min(seen, key=lambda s: abs(seen[s] - ms)))


def _next_size(seen: dict[int, float], ms: float) -> int:
    """Where a line through the last two trials, or one through zero, reaches `ms`."""
    (size, took), *before = reversed(seen.items())
    slope = took / size
    if before and size != before[0][0]:
        slope = max((took - before[0][1]) / (size - before[0][0]), slope / 10)
    return max(1, min(4096, round(size + (ms - took) / slope)))


def _step_ms(plan: Plan, device: str) -> float:
    """Milliseconds of a step: the best of five short blocks, the one least disturbed."""
    training, wait = Training(plan, device), waiter(device)
    batches = training.batches()
    times: list[float] = []
    steps = 5
    for _ in range(6):
        wait()
        began = time.perf_counter()
        for _ in range(steps):
            training.step(*next(batches))
        wait()
        times.append((time.perf_counter() - began) * 1000 / steps)
    return min(times[1:])
