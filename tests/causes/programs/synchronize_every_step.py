"""torch.cuda.synchronize() ends every step, so the host prepares the next while the GPU idles."""

import time

import numpy as np
import torch
from torch import nn

CAUSE = "sync.synchronize"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    layers = [layer for _ in range(20) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(8192, 2048, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(80):
        begin = time.perf_counter()
        order = np.argsort(generator.random(40_000), kind="stable")[:8192] % 8192
        rows = torch.from_numpy(order).pin_memory().to("cuda", non_blocking=True)
        loss = model(inputs.index_select(0, rows)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    print(sum(times))


if __name__ == "__main__":
    main()
