"""The model and its optimizer are saved after every step."""

import tempfile
from pathlib import Path

import torch
from torch import nn

CAUSE = "run.checkpoint_saving"
DEVICE = "cpu"


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(50_000, 64, sparse=True), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words, labels = torch.randint(50_000, (16, 8)), torch.randint(10, (16,))
    with tempfile.TemporaryDirectory() as folder:
        for step in range(80):
            loss = nn.functional.cross_entropy(model(words), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, Path(folder) / f"{step % 2}.pt")


if __name__ == "__main__":
    main()
