"""Hundreds of samples of a few numbers each are fetched one by one and put together in Python."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.tiny_samples"
DEVICE = "cpu"


class Points(Dataset):
    def __init__(self, count):
        self.points = np.random.rand(count, 4).astype("float32")

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.points[index, :1]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Points(60_000), batch_size=600, shuffle=True)
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for points, targets in loader:
        loss = nn.functional.mse_loss(model(points), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
