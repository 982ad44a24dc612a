"""One worker makes batches that take it longer than a step."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.too_few_workers"
DEVICE = "cpu"


class Signals(Dataset):
    def __len__(self):
        return 800

    def __getitem__(self, index):
        signal = np.linspace(0, index, 20_000, dtype="float32")
        for _ in range(30):
            signal = np.sin(signal) + np.float32(0.1)
        return torch.from_numpy(signal[:128].copy()), index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Signals(), batch_size=8, shuffle=True, num_workers=1)
    model = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for signals, labels in loader:
        loss = nn.functional.cross_entropy(model(signals), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
