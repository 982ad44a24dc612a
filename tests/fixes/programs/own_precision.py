"""A program with autocast and a GradScaler of its own, which unscales before it clips."""

import sys

import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
HALF = torch.float16 if DEVICE == "cuda" else torch.bfloat16

torch.manual_seed(0)
inputs, labels = torch.randn(46, 12), torch.randint(0, 3, (46,))
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 3)).to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(DEVICE)
for _ in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=HALF):
            loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print("loss", repr(loss.item()))
print("scale", scaler.get_scale())
print("weights", digest(model))
