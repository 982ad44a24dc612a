"""Train what torch.compile returned for the model; the last batch is smaller and recompiles."""
# steps: 14
# compile: graphs recompilations

import _counters  # noqa: F401
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(106, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.mse_loss(compiled(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
