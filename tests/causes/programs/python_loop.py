"""A smoothness term is added up element by element, in Python."""

import torch
from torch import nn

CAUSE = "launch.python_loops"
DEVICE = "cpu"


def roughness(signal):
    total = signal.new_zeros(())
    for i in range(1, signal.shape[0]):
        total = total + (signal[i] - signal[i - 1]).abs()
    return total


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 48))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(100, 16, 64)
    targets = torch.rand(100, 16, 48)
    for batch, target in zip(inputs, targets, strict=True):
        output = model(batch)
        loss = nn.functional.mse_loss(output, target) + 0.01 * roughness(output.mean(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
