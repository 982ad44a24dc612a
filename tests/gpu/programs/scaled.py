"""fp16 autocast with a GradScaler on CUDA."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(64, 128, device="cuda")
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cuda", init_scale=2.0**40)
for _ in range(30):
    with torch.autocast("cuda", dtype=torch.float16):
        loss = model(inputs).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    print("loss", repr(loss.item()))
