"""A loop in which any synchronisation, its own or an observer's, is an error."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(64, 128, device="cuda")
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range(120):
    if step == 5:
        torch.cuda.set_sync_debug_mode("error")
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.cuda.set_sync_debug_mode("default")
print("loss", repr(loss.item()))
