"""A long chain of pointwise operations over a large tensor, each reading and writing all of it."""

import torch
from torch import nn

CAUSE = "compute.unfused_pointwise"
DEVICE = "cpu"
THREADS = "all"


class Activation(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        inner = x * 0.7979 + x * x * x * 0.0356
        gate = 0.5 * (1 + inner.clamp(-1, 1))
        return (x * gate + 0.1) * self.scale - x * 0.01


def main():
    torch.manual_seed(0)
    model = nn.Sequential(Activation(), Activation())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 4096)
    for _ in range(80):
        loss = model(inputs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
