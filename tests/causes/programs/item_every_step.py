"""The loss is read in every step, so the host prepares the next batch while the GPU idles."""

import numpy as np
import torch
from torch import nn

CAUSE = "sync.item"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(4096, 4096, device="cuda", dtype=torch.bfloat16)
    total = 0.0
    for _ in range(100):
        order = np.argsort(generator.random(40_000), kind="stable")[:4096] % 4096
        rows = torch.from_numpy(order).pin_memory().to("cuda", non_blocking=True)
        loss = model(inputs.index_select(0, rows)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total)


if __name__ == "__main__":
    main()
