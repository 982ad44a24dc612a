"""A fast GPU behind a main process that makes every picture itself."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.loader_bound"
DEVICE = "cuda"


class Pictures(Dataset):
    def __len__(self):
        return 3200

    def __getitem__(self, index):
        image = torch.full((3, 128, 128), index / 3200)
        for _ in range(6):
            image = (image + image.roll(1, -1)).sin()
        return image, index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Pictures(), batch_size=32, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for images, labels in loader:
        images, labels = images.cuda(), labels.cuda()
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
