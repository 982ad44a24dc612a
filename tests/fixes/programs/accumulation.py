"""Two batches per step, clipped gradients, two groups of parameters, a schedule, two workers
with batches of 281 KiB."""

import sys

import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
EVERY = 2

torch.manual_seed(0)
inputs = torch.randn(46, 9000)
targets = inputs[:, :4].sum(dim=1, keepdim=True)
loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True, num_workers=2)
model = nn.Sequential(nn.Linear(9000, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 1)).to(DEVICE)
matrices = [p for p in model.parameters() if p.dim() > 1]
vectors = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW(
    [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], lr=1e-2
)
warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6)
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, decay], [2])
for _ in range(2):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader, start=1):
        loss = nn.functional.mse_loss(model(x.to(DEVICE)), y.to(DEVICE))
        (loss / EVERY).backward()
        print("loss", repr(loss.item()))
        if number % EVERY == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
print("rate", repr(scheduler.get_last_lr()[0]))
print("weights", digest(model))
