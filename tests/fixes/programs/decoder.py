"""Train a decoder with dropout, without any loader; its blocks attend in three different ways."""

import math
import sys

import torch
from _digest import digest
from torch import nn

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
WORDS, LENGTH, WIDTH, HEADS = 50, 16, 32, 4


class NaiveAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x):
        size, length, _ = x.shape
        heads = self.qkv(x).reshape(size, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        scores = query @ key.transpose(-2, -1) / math.sqrt(key.size(-1))
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = scores.softmax(dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(size, length, WIDTH))


class FusedAttention(NaiveAttention):
    def forward(self, x):
        size, length, _ = x.shape
        heads = self.qkv(x).reshape(size, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(size, length, WIDTH))


class LibraryAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).triu(1).bool())

    def forward(self, x):
        return self.attention(x, x, x, attn_mask=self.mask)[0]


class Block(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x):
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        kinds = (NaiveAttention, FusedAttention, LibraryAttention)
        self.blocks = nn.ModuleList(Block(kind()) for kind in kinds)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


torch.manual_seed(0)
text = torch.randint(0, WORDS, (400,))


def batch():
    starts = torch.randint(0, len(text) - LENGTH - 1, (6,))
    x = torch.stack([text[i : i + LENGTH] for i in starts])
    y = torch.stack([text[i + 1 : i + 1 + LENGTH] for i in starts])
    return x.to(DEVICE), y.to(DEVICE)


model = Decoder().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
for _ in range(12):
    _, loss = model(*batch())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    print("loss", repr(loss.item()))
print("weights", digest(model))
