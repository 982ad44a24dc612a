"""Healthy: large products on all cores, data in memory, a fused optimizer."""

import torch
from torch import nn

CAUSE = "healthy"
DEVICE = "cpu"
THREADS = "all"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(768, 768), nn.ReLU(), nn.Linear(768, 768))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs, targets = torch.rand(512, 768), torch.rand(512, 768)
    for _ in range(48):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
