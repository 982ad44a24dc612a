"""Ten steps of very many small operations each; exit with 4."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(60)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(10):
    optimizer.zero_grad()
    loss = model(torch.randn(1, 2)).square().mean()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
sys.exit(4)
