"""Anomaly detection was left on after a hunt for a NaN."""

import torch
from torch import nn

CAUSE = "compute.debug_modes"
DEVICE = "cpu"


def main():
    torch.manual_seed(0)
    torch.autograd.set_detect_anomaly(True)
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.rand(200, 16, 64)
    for batch in inputs:
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
