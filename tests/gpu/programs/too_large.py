"""Asks for more memory than the device has, after some steps."""

import torch
from torch import nn

model = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    loss = model(torch.randn(8, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.empty(1 << 42, device="cuda")
