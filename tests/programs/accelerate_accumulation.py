"""Train with accelerate, four micro-batches to an update, the last group shorter."""
# steps: 12
# losses: mean
# needs: accelerate
# slow

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(44, 8)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
model, optimizer, loader = accelerator.prepare(
    model,
    torch.optim.AdamW(model.parameters(), lr=1e-2),
    DataLoader(data, batch_size=2, shuffle=True),
)

for epoch in range(2):
    micro_losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            micro_losses.append((loss / 4).item())
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            print("loss", repr(sum(micro_losses) / len(micro_losses)))
            micro_losses = []
