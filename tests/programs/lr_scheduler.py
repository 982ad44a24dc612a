"""Train with a learning rate that warms up and then decays."""
# slow
# steps: 20

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=15)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[5])

for _ in range(20):
    x = torch.randn(16, 8)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    print("loss", repr(loss.item()))
    print("rate", repr(scheduler.get_last_lr()[0]))
