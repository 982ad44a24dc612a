"""The loop makes its own batches in Python: a phase of their own they have not."""

import random

import torch
from torch import nn

CAUSE = "launch.other_code"
DEVICE = "cpu"


def get_batch(text, size=64, context=48):
    """Characters are looked up one by one."""
    samples, targets = [], []
    for _ in range(size):
        start = random.randrange(len(text) - context - 1)
        window = text[start : start + context]
        samples.append([(ord(letter) * 31 + place) % 256 for place, letter in enumerate(window)])
        targets.append(ord(text[start + context]) % 256)
    return torch.tensor(samples), torch.tensor(targets)


def main():
    torch.manual_seed(0)
    random.seed(0)
    text = "".join(chr(97 + random.randrange(26)) for _ in range(100_000))
    model = nn.Sequential(nn.EmbeddingBag(256, 16), nn.Linear(16, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(300):
        samples, targets = get_batch(text)
        loss = nn.functional.cross_entropy(model(samples), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
