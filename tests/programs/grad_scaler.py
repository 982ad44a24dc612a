"""Train with a GradScaler; one huge sample weight overflows the gradients of one update."""
# steps: 16
# optimizer steps: any

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=True, init_scale=65536.0)

for i in range(16):
    x = torch.randn(16, 8)
    y = x.sum(dim=1, keepdim=True)
    weights = torch.ones(16, 1)
    if i == 6:
        weights[3] = 1e36
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prediction = model(x)
    loss = (weights * (prediction.float() - y) ** 2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("loss", repr(loss.item()))
    print("scale", scaler.get_scale())
