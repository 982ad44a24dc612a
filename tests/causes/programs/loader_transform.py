"""Pictures are blurred and jittered in the main process before every step."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data.loader_bound"
DEVICE = "cpu"


class Blur:
    def __init__(self, rounds):
        self.rounds = rounds

    def __call__(self, image):
        for _ in range(self.rounds):
            image = (image + np.roll(image, 1, 0) + np.roll(image, 1, 1)) / 3
        return image


class Jitter:
    def __call__(self, image):
        return image * np.float32(1.1) - np.float32(0.05)


class Pictures(Dataset):
    def __init__(self, count, transforms):
        self.pixels = np.random.rand(count, 96, 96).astype("float32")
        self.transforms = transforms

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        image = self.pixels[index]
        for transform in self.transforms:
            image = transform(image)
        return torch.from_numpy(image), index % 10


def main():
    torch.manual_seed(0)
    loader = DataLoader(Pictures(320, [Blur(20), Jitter()]), batch_size=8, shuffle=True)
    model = nn.Sequential(
        nn.MaxPool2d(8), nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
