"""A training program whose samples wait on slow storage, and that breaks under one fix only."""

SOURCE = """
import glob
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Stored(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(1204, 3, 8, 8, generator=generator)
        self.labels = (self.images.mean(dim=(1, 2, 3)) > 0).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        time.sleep(0.004)
        return self.images[index], self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(256, 2)

    def forward(self, images):
        return self.head(self.convolution(images).view(len(images), -1))


def main():
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    kept = sorted(glob.glob("checkpoint-*.pt"))
    if kept:
        model.load_state_dict(torch.load(kept[-1]))
    loader = DataLoader(Stored(), batch_size=8, shuffle=True)
    for epoch in range(100):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with open("log.txt", "a") as log:
            print(epoch, loss.item(), file=log)
        torch.save(model.state_dict(), f"checkpoint-{epoch:02d}.pt")


if __name__ == "__main__":
    main()
"""
