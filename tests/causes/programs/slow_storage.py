"""Every sample is a file on storage that takes milliseconds to answer (here: by sleeping)."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.slow_storage"
DEVICE = "cpu"


class RemoteFiles(Dataset):
    def __init__(self, folder, count):
        self.paths = [Path(folder) / f"{index}.npy" for index in range(count)]
        for path in self.paths:
            np.save(path, np.random.rand(256).astype("float32"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        time.sleep(0.003)  # what a network file system takes to answer
        return torch.from_numpy(np.load(self.paths[index])), index % 10


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(RemoteFiles(folder, 256), batch_size=8, shuffle=True)
        model = nn.Sequential(nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for samples, labels in loader:
                loss = nn.functional.cross_entropy(model(samples), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
