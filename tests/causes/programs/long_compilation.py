"""A deep model is compiled for a training of a few steps."""

import torch
from torch import nn

CAUSE = "run.compile_share"
DEVICE = "cpu"


def main():
    torch.manual_seed(0)
    layers = [
        layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.GELU(), nn.LayerNorm(32))
    ]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="aot_eager")
    for batch, target in torch.rand(60, 2, 16, 32):
        loss = nn.functional.mse_loss(compiled(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
