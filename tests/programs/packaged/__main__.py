"""Train the package's model; run as `python -m packaged`."""
# steps: 14
# arguments: --epochs 2

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from .model import build

print("argv", sys.argv)
print("file", __file__)
print("name", __name__, __package__, __spec__.name)
print("cwd", os.getcwd())
print("path", sys.path[0])

torch.manual_seed(0)
inputs = torch.randn(56, 8)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
loader = DataLoader(data, batch_size=8, shuffle=True)
model = build()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

for epoch in range(int(sys.argv[2])):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
