"""Train a small language model on random crops of a memory-mapped token file, no DataLoader."""
# steps: 20
# slow

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

BLOCK, BATCH, VOCABULARY = 16, 8, 64


class Bigram(nn.Module):
    """Two layers over token embeddings; returns logits and the loss."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens, targets):
        logits = self.head(torch.tanh(self.mix(self.embed(tokens))))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(path):
    data = np.memmap(path, dtype=np.uint16, mode="r")
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    crops = [torch.from_numpy(data[i : i + BLOCK + 1].astype(np.int64)) for i in starts]
    batch = torch.stack(crops)
    return batch[:, :-1], batch[:, 1:]


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "train.bin"
    np.random.default_rng(0).integers(0, VOCABULARY, 5000).astype(np.uint16).tofile(path)
    torch.manual_seed(0)
    model = Bigram()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for iteration in range(20):
        tokens, targets = get_batch(path)
        logits, loss = model(tokens, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print("loss", repr(loss.item()))
