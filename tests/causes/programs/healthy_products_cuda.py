"""Healthy: large bf16 products that keep the GPU busy."""

import torch
from torch import nn

CAUSE = "healthy"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(8192, 8192, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(16_384, 8192, device="cuda", dtype=torch.bfloat16)
    for _ in range(60):
        loss = model(inputs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
