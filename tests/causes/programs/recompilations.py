"""Batches of a dozen lengths, compiled for each until torch.compile gives up."""

import torch
from torch import nn

CAUSE = "launch.recompiles"
DEVICE = "cpu"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="eager", dynamic=False)
    for step in range(150):
        batch, target = torch.rand(2, 8 + step % 12, 64)
        loss = nn.functional.mse_loss(compiled(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
