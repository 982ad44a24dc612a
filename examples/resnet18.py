"""ResNet-18 on synthetic 32 px images that are already on the device, in a few batches."""

import argparse

import torch
import torchvision
from torch import nn

BATCHES = 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torchvision.models.resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.004, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    labels = torch.randint(0, 10, (BATCHES, arguments.batch), device=device)
    kinds = torch.randn(10, 3, 32, 32, device=device)
    images = 0.3 * kinds[labels] + torch.randn(BATCHES, arguments.batch, 3, 32, 32, device=device)
    for step in range(arguments.steps):
        loss = criterion(model(images[step % BATCHES]), labels[step % BATCHES])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
