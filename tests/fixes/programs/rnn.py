"""Train an LSTM on sequences of different lengths, padded per batch."""

import sys

import torch
from _digest import digest
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        hidden, _ = self.lstm(self.words(tokens))
        return self.head(hidden)


def padded(samples):
    tokens, tags = zip(*samples, strict=True)
    return pad_sequence(tokens, True), pad_sequence(tags, True, padding_value=-100)


torch.manual_seed(0)
lengths = torch.randint(4, 12, (30,)).tolist()
data = [(torch.randint(1, 40, (n,)), torch.randint(0, 5, (n,))) for n in lengths]
loader = DataLoader(data, batch_size=8, shuffle=True, collate_fn=padded)
model = Tagger().to(DEVICE)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(2):
    for tokens, tags in loader:
        tokens, tags = tokens.to(DEVICE), tags.to(DEVICE)
        optimizer.zero_grad()
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), tags)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print("loss", repr(loss.item()))
print("weights", digest(model))
