"""Transformer encoders: a vision transformer with timm's parameter names, and a classifier over
patches or characters.
"""

from collections import OrderedDict

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Full attention: every token sees every other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        split = self.qkv(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        seen = nn.functional.scaled_dot_product_attention(query, key, value)
        return self.proj(seen.transpose(1, 2).reshape(batch, tokens, width))


class _Block(nn.Module):
    """Attention and feedforward, pre-normalized, with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        first, last = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=first, act=nn.GELU(), fc2=last))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class _Patches(nn.Module):
    """Cuts images into squares of `patch` pixels: [N, 3, size, size] → [N, squares, width]."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """The small one: images [N, 3, size, size] → logits [N, classes], read from a class token."""

    def __init__(self, size: int, classes: int, patch: int = 16, width: int = 384) -> None:
        super().__init__()
        squares = _squares_of(size, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, squares + 1, width))
        self.patch_embed = _Patches(patch, width)
        self.blocks = nn.Sequential(*(_Block(width, heads=6) for _ in range(12)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self.apply(init_weights)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        squares = self.patch_embed(images)
        first = self.cls_token.expand(squares.shape[0], -1, -1)
        x = torch.cat((first, squares), dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def _squares_of(size: int, patch: int) -> int:
    """The number of patches in an image, whose size must be a multiple of theirs."""
    if size < patch or size % patch:
        raise ValueError(f"--size {size} is not a multiple of its patches' {patch} pixels")
    return (size // patch) ** 2


WIDTH, HEADS, LAYERS, PATCH = 256, 4, 6, 4


class Encoder(nn.Module):
    """Inputs, embedded as [N, tokens, width] → logits [N, classes] of the mean token."""

    def __init__(self, embed: nn.Module, tokens: int, classes: int) -> None:
        super().__init__()
        self.embed = embed
        self.positions = nn.Parameter(torch.zeros(1, tokens, WIDTH))
        self.blocks = nn.Sequential(*(_Block(WIDTH, HEADS) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, classes)
        self.apply(init_weights)
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, inputs: Tensor) -> Tensor:
        embedded = self.embed(inputs)
        x = self.blocks(embedded + self.positions[:, : embedded.shape[1]])
        return self.head(self.norm(x).mean(dim=1))


def patches(size: int, classes: int) -> Encoder:
    """Over image patches of 4 pixels."""
    return Encoder(_Patches(PATCH, WIDTH), _squares_of(size, PATCH), classes)


def characters(vocabulary: int, length: int, classes: int) -> Encoder:
    """Over at most `length` characters."""
    embed = nn.Embedding(vocabulary, WIDTH)
    nn.init.normal_(embed.weight, std=0.02)
    return Encoder(embed, length, classes)
