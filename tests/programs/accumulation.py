"""Accumulate gradients over four micro-batches, with a shorter group at the end of each epoch."""
# steps: 12
# losses: mean

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE = 4

torch.manual_seed(0)
data = TensorDataset(torch.randn(44, 8), torch.randn(44, 1))
loader = DataLoader(data, batch_size=2, shuffle=True)  # 22 micro-batches: 5 groups of 4, one of 2
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(2):
    micro_losses = []
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.mse_loss(model(x), y) / ACCUMULATE
        loss.backward()
        micro_losses.append(loss.item())
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            print("loss", repr(sum(micro_losses) / len(micro_losses)))
            micro_losses = []
