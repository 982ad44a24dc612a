"""Train an epoch, evaluate, and train again."""
# steps: 20

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
inputs = torch.randn(80, 8)
train_loader = DataLoader(TensorDataset(inputs, inputs.sum(dim=1)), batch_size=8, shuffle=True)
held_out = torch.randn(72, 8)
test_loader = DataLoader(TensorDataset(held_out, held_out.sum(dim=1)), batch_size=8)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def train():
    model.train()
    for x, y in train_loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))


@torch.no_grad()
def evaluate():
    model.eval()
    errors = [nn.functional.mse_loss(model(x).squeeze(1), y).item() for x, y in test_loader]
    print("test", repr(sum(errors) / len(errors)))


train()
evaluate()
train()
evaluate()
