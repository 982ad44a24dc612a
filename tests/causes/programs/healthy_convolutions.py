"""Healthy: a small CNN over batches that a worker has ready in time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CAUSE = "healthy"
DEVICE = "cpu"
THREADS = "all"


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(1920, 3, 32, 32), torch.randint(10, (1920,)))
    loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
