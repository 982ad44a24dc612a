"""Adam updates eighty small parameters one after the other."""

import torch
from torch import nn

CAUSE = "launch.unfused_optimizer"
DEVICE = "cpu"


def main():
    torch.manual_seed(0)
    model = nn.ParameterList([torch.rand(32) for _ in range(80)])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=False)
    for target in torch.rand(100, 32):
        loss = (torch.stack(tuple(model)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
