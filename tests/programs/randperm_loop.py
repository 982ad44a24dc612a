"""Train on tensors held in memory, shuffled by randperm."""
# steps: 18
# slow

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(90, 12)
targets = inputs.sum(dim=1, keepdim=True).sin()
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

for epoch in range(3):
    order = torch.randperm(len(inputs))
    for start in range(0, len(inputs), 16):
        chosen = order[start : start + 16]
        loss = ((model(inputs[chosen]) - targets[chosen]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
