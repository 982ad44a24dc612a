"""torch.cuda.empty_cache() in the loop: memory is given back and asked for again in each step."""

import torch
from torch import nn

CAUSE = "sync.empty_cache"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(8) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(16_384, 2048, device="cuda", dtype=torch.bfloat16)
    for _ in range(80):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
