"""Tuned: fused attention, a fused optimizer, validation and a checkpoint once at the end."""

import tempfile
from pathlib import Path

import torch
from torch import nn

CAUSE = "healthy"
DEVICE = "cpu"
THREADS = "all"


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(Block(256, 4), Block(256, 4), nn.Linear(256, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs, targets = torch.rand(2, 4, 64, 256)
    for _ in range(60):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(inputs)
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")


if __name__ == "__main__":
    main()
