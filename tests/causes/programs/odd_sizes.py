"""Products in bf16 whose sizes are multiples of nothing the tensor cores like."""

import torch
from torch import nn

CAUSE = "compute.odd_sizes"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(4095, 4095, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(4099, 4095, device="cuda", dtype=torch.bfloat16)
    for _ in range(60):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
