"""Convolutions under autocast on NCHW tensors: kernels that only change layouts in between."""

import torch
from torch import nn

CAUSE = "compute.layout_changes"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    layers = [nn.Conv2d(3, 128, 3, padding=1), nn.ReLU()]
    for _ in range(8):
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    images = torch.rand(64, 3, 64, 64, device="cuda")
    labels = torch.randint(10, (64,), device="cuda")
    for _ in range(60):
        with torch.autocast("cuda", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
