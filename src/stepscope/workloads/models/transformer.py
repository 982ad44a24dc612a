"""An encoder that classifies, over the patches of an image or over characters."""

import torch
from torch import Tensor, nn

from stepscope.workloads.models.vit import Block, Patches, squares_of, start

WIDTH, HEADS, LAYERS, PATCH = 256, 4, 6, 4


class Encoder(nn.Module):
    """Inputs, embedded as [N, tokens, width] → logits [N, classes] of the mean token."""

    def __init__(self, embed: nn.Module, tokens: int, classes: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(torch.zeros(1, tokens, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        self.apply(start)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        embedded = self.embed(inputs)
        x = self.blocks(embedded + self.positions[:, : embedded.shape[1]])
        logits: Tensor = self.head(self.norm(x).mean(dim=1))
        return logits


def patches(size: int, classes: int) -> Encoder:
    """Over image patches of 4 pixels."""
    return Encoder(Patches(PATCH, WIDTH), squares_of(size, PATCH), classes)


def characters(vocabulary: int, length: int, classes: int) -> Encoder:
    """Over at most `length` characters."""
    embed = nn.Embedding(vocabulary, WIDTH)
    nn.init.normal_(embed.weight, std=0.02)
    return Encoder(embed, length, classes)
