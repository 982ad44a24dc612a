"""Train for three steps, then end in the way the first argument names."""

import os
import signal
import sys
import time

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(4, 1)
        self.broken = False

    def forward(self, x):
        if self.broken:
            raise ValueError("no fourth step")
        return self.line(x)


def train(steps):
    for _ in range(steps):
        x = torch.randn(8, 4)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()), flush=True)


def fail():
    model.broken = True
    train(1)


def wait():
    print("ready", flush=True)
    time.sleep(60)


def wait_and_catch():
    try:
        wait()
    except KeyboardInterrupt:
        print("interrupted")
        sys.exit(9)


WAYS = {
    "raise": fail,
    "exit": lambda: sys.exit(3),
    "hard-exit": lambda: os._exit(5),
    "wait": wait,
    "catch": wait_and_catch,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "out-of-memory": lambda: torch.empty(1 << 58),
    "memory-error": lambda: bytearray(1 << 62),
}
torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(3)
WAYS[sys.argv[1]]()
