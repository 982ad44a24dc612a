"""Train a model compiled with the default backend, which needs a C++ compiler on the CPU."""
# steps: 10
# compile: graphs
# needs: g++
# slow

import _counters  # noqa: F401
import torch
from torch import nn

torch.manual_seed(0)
model = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

for _ in range(10):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
