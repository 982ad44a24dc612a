"""Large batches from pageable memory: every copy to the GPU keeps the host waiting."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = ("transfer.blocking_copies", "data.no_pinning")
DEVICE = "cuda"


class Batches(Dataset):
    def __init__(self, count, size):
        self.images = torch.ones(count, size, 3, 256, 256)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], torch.arange(len(self.images[index])) % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Batches(40, 64), batch_size=None)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 4, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for _ in range(2):
        for images, labels in loader:
            images, labels = images.cuda(), labels.cuda()
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
