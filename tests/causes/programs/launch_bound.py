"""A deep and narrow model: hundreds of kernels of microseconds, each launched by the host."""

import torch
from torch import nn

CAUSE = "launch.launch_bound"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    layers = [
        layer for _ in range(30) for layer in (nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU())
    ]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    inputs = torch.rand(256, 64, device="cuda")
    for _ in range(150):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
