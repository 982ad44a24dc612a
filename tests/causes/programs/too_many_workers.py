"""Sixteen workers take the processor from the step they feed."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.too_many_workers"
DEVICE = "cpu"


class Noise(Dataset):
    def __len__(self):
        return 1280

    def __getitem__(self, index):
        noise = np.full((3, 32, 32), index, dtype="float32")
        for _ in range(40):
            noise = np.sin(noise)
        return torch.from_numpy(noise), index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Noise(), batch_size=16, num_workers=16)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in loader:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
