"""Train a small residual CNN with batch norm; waits for the device in every step, as many do."""

import sys

import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*(Block(8) for _ in range(3)))
        self.head = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x):
        x = self.blocks(self.stem(x))
        x = nn.functional.adaptive_avg_pool2d(x, 4)
        return self.head(x.reshape(len(x), -1))


torch.manual_seed(0)
images, labels = torch.randn(46, 3, 12, 12), torch.randint(0, 10, (46,))
loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
model = Net().to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
for _ in range(2):
    running = 0.0
    for x, y in loader:
        x, y = x.to(DEVICE), y.to(DEVICE)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        running += loss.item()
        print("loss", repr(loss.item()))
    print("epoch", repr(running / len(loader)))
print("weights", digest(model))
