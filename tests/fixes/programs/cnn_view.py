"""Train a CNN on images that are flipped at random, with `.view` before its last layer."""

import sys

import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class Images(Dataset):
    def __init__(self, count):
        self.images = torch.randn(count, 3, 12, 12)
        self.labels = torch.randint(0, 10, (count,))

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image, self.labels[index]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1, stride=2)
        self.head = nn.Linear(16 * 6 * 6, 10)

    def forward(self, x):
        x = torch.relu(self.second(torch.relu(self.first(x))))
        return self.head(x.view(x.size(0), -1))


torch.manual_seed(0)
loader = DataLoader(Images(46), batch_size=8, shuffle=True)
model = Net()
if DEVICE == "cuda":
    model.cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(2):
    for x, y in loader:
        if DEVICE == "cuda":
            x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
print("weights", digest(model))
