"""An intentionally slow training program: PIL images resized in the main process, batch 32,
no pinning, and a synchronisation and a read of the loss in every step."""

import argparse

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Images(Dataset):
    """CIFAR-like pictures, brighter from class to class."""

    def __init__(self, count, transform):
        generator = np.random.default_rng(0)
        self.labels = generator.integers(0, 10, count)
        self.pixels = generator.integers(0, 148, (count, 32, 32, 3), dtype=np.uint8)
        self.pixels += (12 * self.labels[:, None, None, None]).astype(np.uint8)
        self.transform = transform

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, index):
        image = Image.fromarray(self.pixels[index])
        return self.transform(image), int(self.labels[index])


class Net(nn.Module):
    """ResNet-18's features and a classifier that calls `.view`."""

    def __init__(self):
        super().__init__()
        resnet = torchvision.models.resnet18(weights=None)
        self.features = nn.Sequential(*list(resnet.children())[:-1])
        self.head = nn.Linear(512, 10)

    def forward(self, x):
        x = self.features(x)
        return self.head(x.view(x.size(0), -1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    transform = transforms.Compose(
        [
            transforms.Resize(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ]
    )
    data = Images(arguments.batch * 100, transform)
    loader = DataLoader(data, batch_size=arguments.batch, shuffle=True)
    model = Net().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    step = 0
    while step < arguments.steps:
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            output = model(images)
            loss = criterion(output, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if device == "cuda":
                torch.cuda.synchronize()
            step += 1
            value = loss.item()
            if step % 50 == 0:
                print(f"step {step} loss {value:.4f}")
            if step == arguments.steps:
                break


if __name__ == "__main__":
    main()
