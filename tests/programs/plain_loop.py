"""Train a classifier on a TensorDataset with an ordinary DataLoader loop."""
# steps: 24

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(8 * 256, 256)
labels = inputs[:, :10].argmax(dim=1)
loader = DataLoader(TensorDataset(inputs, labels), batch_size=256, shuffle=True)

model = nn.Sequential(nn.Linear(256, 768), nn.ReLU(), nn.Linear(768, 512), nn.Linear(512, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
print("done")
