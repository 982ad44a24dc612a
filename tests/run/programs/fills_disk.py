"""Train three steps, fill the file system that holds argv[1], train three more; exit with 4."""

import errno
import sys

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


train()
for size in (1 << 16, 1 << 10, 1):
    try:
        with open(f"{sys.argv[1]}/filler{size}", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * size)
    except OSError as problem:
        print(errno.errorcode[problem.errno])
for _ in range(200):  # each is a fact to be written
    torch.optim.SGD(model.parameters(), lr=0.1)
train()
sys.exit(4)
