"""Compile the function that holds the forward pass and the loss."""
# steps: 15
# compile: graphs
# slow

import _counters  # noqa: F401
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.compile(backend="eager")
def compute_loss(x, y):
    return nn.functional.cross_entropy(model(x), y)


for _ in range(15):
    x = torch.randn(16, 8)
    loss = compute_loss(x, x[:, :4].argmax(dim=1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
