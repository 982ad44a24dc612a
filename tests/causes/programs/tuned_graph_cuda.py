"""Tuned: a small model whose whole step is one CUDA graph."""

import torch
from torch import nn

CAUSE = "healthy"
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    layers = [layer for _ in range(12) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    model = nn.Sequential(*layers).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(16_384, 1024, device="cuda", dtype=torch.bfloat16)
    captured = torch.cuda.make_graphed_callables(model, (inputs.clone(),))
    for _ in range(150):
        loss = captured(inputs).mean()
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
