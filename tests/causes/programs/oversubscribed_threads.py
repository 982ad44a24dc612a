"""Far more threads than there are cores fight for them in every operator."""

import torch
from torch import nn

CAUSE = "data.cpu_oversubscribed"
DEVICE = "cpu"
THREADS = "all"


def main():
    torch.manual_seed(0)
    torch.set_num_threads(32)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.rand(2, 256, 512)
    for _ in range(40):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
