"""Train, evaluate, save everything, load it into new objects, and train on."""

import sys
import tempfile
from pathlib import Path

import torch
from _digest import digest
from torch import nn
from torch.utils.data import DataLoader, Dataset

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class Images(Dataset):
    """Made larger whenever they are asked for, as if they were read from files."""

    def __init__(self, images, labels):
        self.images, self.labels = images, labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = nn.functional.interpolate(self.images[None, index], scale_factor=2)
        return image[0], int(self.labels[index])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


def prepared(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def train(model, optimizer, scheduler):
    model.train()
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
    scheduler.step()


@torch.no_grad()
def evaluate(model):
    model.eval()
    total = torch.zeros((), device=DEVICE)
    for x, y in held_out:
        total += nn.functional.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE), reduction="sum")
    print("validation", repr(total.item() / 10))


torch.manual_seed(0)
images, labels = torch.randn(56, 1, 4, 4), torch.randint(0, 4, (56,))
loader = DataLoader(Images(images[:46], labels[:46]), batch_size=8, shuffle=True)
held_out = DataLoader(Images(images[46:], labels[46:]), batch_size=8)
model = Net().to(DEVICE)
optimizer, scheduler = prepared(model)
train(model, optimizer, scheduler)
evaluate(model)
with tempfile.TemporaryDirectory() as folder:
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    torch.save({name: part.state_dict() for name, part in parts.items()}, Path(folder) / "parts.pt")
    torch.save(model, Path(folder) / "whole.pt")
    torch.save(optimizer, Path(folder) / "optimizer.pt")
    saved = torch.load(Path(folder) / "parts.pt", map_location=DEVICE)
    whole = torch.load(Path(folder) / "whole.pt", map_location=DEVICE, weights_only=False)
    kept = torch.load(Path(folder) / "optimizer.pt", weights_only=False)
assert digest(whole) == digest(model)
assert len(kept.state) == len(optimizer.state)
evaluate(whole)

model = Net().to(DEVICE)
optimizer, scheduler = prepared(model)
model.load_state_dict(saved["model"])
optimizer.load_state_dict(saved["optimizer"])
scheduler.load_state_dict(saved["scheduler"])
evaluate(model)
train(model, optimizer, scheduler)
evaluate(model)
print("weights", digest(model))
