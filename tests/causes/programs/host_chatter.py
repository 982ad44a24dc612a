"""Outputs and gradients travel to the host in every step, to be looked at there."""

import torch
from torch import nn

CAUSE = ("transfer.device_to_host", "sync.cpu")
DEVICE = "cuda"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 2048)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(512, 2048, device="cuda")
    for _ in range(100):
        output = model(inputs)
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
        kept = output.detach().cpu().numpy()
    print(len(gradients), kept.shape)


if __name__ == "__main__":
    main()
