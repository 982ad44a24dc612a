"""Fit a small network with LBFGS, which calls its closure many times in one step."""
# steps: 10
# losses: mean
# slow

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-2, 2, 64).unsqueeze(1)
y = torch.sin(3 * x)
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)
evaluations = []


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    evaluations.append(loss.item())
    return loss


for _ in range(10):
    evaluations.clear()
    optimizer.step(closure)
    print("evaluations", len(evaluations))
    print("loss", repr(sum(evaluations) / len(evaluations)))
