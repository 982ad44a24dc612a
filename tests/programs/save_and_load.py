"""Save the whole model in the middle of training, load it, and go on with what was loaded."""
# steps: 20
# optimizer steps: 10 10

import hashlib
import io

import torch
from torch import nn


class Net(nn.Module):
    """A two-layer regression."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(steps):
        x = torch.randn(16, 8)
        loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


torch.manual_seed(0)
model = Net()
train(model, 10)
file = io.BytesIO()
torch.save(model, file)
print("saved", hashlib.sha256(file.getvalue()).hexdigest())
file.seek(0)
train(torch.load(file, weights_only=False), 10)
