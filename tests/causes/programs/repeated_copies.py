"""The same table is copied to the GPU in every step."""

import torch
from torch import nn

CAUSE = "transfer.repeated_copies"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    table = torch.rand(8_000_000)
    model = nn.Linear(1000, 1000).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(1000, 1000, device="cuda")
    for _ in range(100):
        weights = table.to("cuda").view(8000, 1000).mean(0)
        loss = (model(inputs) * weights).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
