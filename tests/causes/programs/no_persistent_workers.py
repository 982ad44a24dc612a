"""Short epochs, and new workers for each of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.no_persistent_workers"
DEVICE = "cpu"


class Rows(Dataset):
    def __init__(self):
        self.rows = torch.rand(48, 512)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index].sort().values, index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Rows(), batch_size=8, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(25):
        for rows, labels in loader:
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
