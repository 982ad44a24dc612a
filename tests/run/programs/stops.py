"""Train for ever, with the kind of `except` around each step that the first argument names."""

import atexit
import sys

import torch
from torch import nn

atexit.register(print, "atexit ran")
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def stubbornly():
    try:
        step()
    except:  # noqa: E722
        print("swallowed")


def carefully():
    try:
        step()
    except Exception:
        print("caught")


try:
    for _ in range(100_000):
        {"bare": stubbornly, "exception": carefully, "none": step}[sys.argv[1]]()
    print("never stopped")
finally:
    print("finally ran")
