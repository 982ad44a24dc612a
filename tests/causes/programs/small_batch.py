"""Two pictures at a time on a GPU that could take hundreds."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CAUSE = "compute.small_batch"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.rand(400, 3, 64, 64), torch.randint(10, (400,)))
    loader = DataLoader(data, batch_size=2, shuffle=True, pin_memory=True)
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
    for _ in range(8):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    for images, labels in loader:
        images = images.to("cuda", non_blocking=True)
        labels = labels.to("cuda", non_blocking=True)
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
