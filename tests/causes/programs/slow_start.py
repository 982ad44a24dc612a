"""Seconds of preparing data in Python before a short training."""

import torch
from torch import nn

CAUSE = "run.startup_share"
DEVICE = "cpu"


def vocabulary(words):
    counts = {}
    for index in range(words):
        word = f"w{index * 7919 % 10007}".lower().strip()
        counts[word] = counts.get(word, 0) + 1
    return sorted(counts, key=lambda word: (-counts[word], word))


def main():
    torch.manual_seed(0)
    size = len(vocabulary(6_000_000))
    model = nn.Sequential(nn.EmbeddingBag(size, 64, sparse=True), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    words, labels = torch.randint(size, (16, 8)), torch.randint(10, (16,))
    for _ in range(60):
        loss = nn.functional.cross_entropy(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
