"""Train one model to its end, then another."""
# steps: 27
# optimizer steps: 17 10
# slow

import torch
from torch import nn


def fit(model, optimizer, steps):
    for _ in range(steps):
        x = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


torch.manual_seed(0)
first = nn.Linear(8, 1)
fit(first, torch.optim.SGD(first.parameters(), lr=0.05), 17)
second = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
fit(second, torch.optim.Adam(second.parameters(), lr=1e-2), 10)
