"""Compile the optimizer's own step method."""
# steps: 12
# optimizer steps: any
# compile: graphs
# slow

import _counters  # noqa: F401
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
step = torch.compile(optimizer.step, backend="eager")

for _ in range(12):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    step()
    optimizer.zero_grad()
    print("loss", repr(loss.item()))
