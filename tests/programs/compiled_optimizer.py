"""Compile the function that steps the optimizer."""
# steps: 12
# optimizer steps: any
# inferred: any
# compile: graphs
# slow

import _counters  # noqa: F401
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(1e-2))


@torch.compile(backend="eager")
def update():
    optimizer.step()


for _ in range(12):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    update()
    optimizer.zero_grad()
    print("loss", repr(loss.item()))
