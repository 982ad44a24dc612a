"""Samples are compressed: reading a file takes microseconds, decoding it milliseconds."""

import lzma
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.slow_decoding"
DEVICE = "cpu"


class Archive(Dataset):
    def __init__(self, folder, count):
        self.paths = [Path(folder) / f"{index}.xz" for index in range(count)]
        for path in self.paths:
            levels = np.random.randint(0, 64, 40_000).astype("uint8")
            path.write_bytes(lzma.compress(levels.tobytes(), preset=0))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        packed = self.paths[index].read_bytes()
        levels = np.frombuffer(lzma.decompress(packed), "uint8")
        return torch.from_numpy(levels[:1024].astype("float32") / 64), index % 10


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(Archive(folder, 256), batch_size=8, shuffle=True)
        model = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(4):
            for samples, labels in loader:
                loss = nn.functional.cross_entropy(model(samples), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
