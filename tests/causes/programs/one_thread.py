"""Large products on a single thread of a machine that has more cores."""

import torch
from torch import nn

CAUSE = "compute.few_threads"
DEVICE = "cpu"
THREADS = "all"


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(512, 1024)
    targets = torch.rand(512, 1024)
    for _ in range(36):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
