"""Adam updates dozens of parameters kernel by kernel."""

import torch
from torch import nn

CAUSE = "launch.unfused_optimizer"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    model = nn.ParameterList([torch.rand(512) for _ in range(64)]).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, foreach=False, fused=False)
    for target in torch.rand(120, 512, device="cuda"):
        loss = (torch.stack(tuple(model)) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
