"""Large products in full float32, while the tensor cores stand idle."""

import torch
from torch import nn

CAUSE = "compute.low_precision"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(4096, 4096, device="cuda")
    for _ in range(50):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
