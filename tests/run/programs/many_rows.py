"""Train three steps, call the model more often than a chunk of rows holds, train; exit with 4."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


train()
with torch.no_grad():
    for _ in range(6000):
        model(torch.ones(1, 4))
train()
sys.exit(4)
