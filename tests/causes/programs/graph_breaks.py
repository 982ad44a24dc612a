"""A compiled model that turns to Python between its layers to look at a value."""

import torch
from torch import nn

CAUSE = "launch.graph_breaks"
DEVICE = "cpu"


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.third = nn.Linear(64, 64)
        self.seen = 0

    def check(self, x):
        if x.abs().max().item() > 1e9:
            raise ValueError("diverged")
        self.seen += len(str(id(x)))

    def forward(self, x):
        x = torch.tanh(self.first(x))
        self.check(x)
        x = torch.tanh(self.second(x))
        self.check(x)
        x = torch.tanh(self.third(x))
        self.check(x)
        return x


def main():
    torch.manual_seed(0)
    model = Gated()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    compiled = torch.compile(model, backend="eager")
    for batch, target in torch.rand(150, 2, 16, 64):
        loss = nn.functional.mse_loss(compiled(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
