"""Attention written out over long sequences: the matrix of scores is written and read again."""

import math

import torch
from torch import nn

CAUSE = "compute.naive_attention"
DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.project(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = torch.softmax(scores, dim=-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[Attention(512, 8) for _ in range(4)]).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(4, 2048, 512, device="cuda", dtype=torch.bfloat16)
    for _ in range(60):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
