"""Every layer picks rows by a mask: the host must wait to learn how many there are."""

import torch
from torch import nn

CAUSE = "sync.nonzero"
DEVICE = "cuda"


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1024, 1024)

    def forward(self, x):
        rows = torch.nonzero(x[:, 0] > -100.0).squeeze(1)
        return self.linear(x.index_select(0, rows))


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[Masked() for _ in range(16)]).cuda().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.rand(32_768, 1024, device="cuda", dtype=torch.bfloat16)
    for _ in range(80):
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
