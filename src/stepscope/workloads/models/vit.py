"""A vision transformer; parameters are named as timm names them, so that its weights load."""

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """Every token looks at every other."""

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
        mixed: Tensor = self.proj(seen.transpose(1, 2).reshape(batch, tokens, width))
        return mixed


class Feedforward(nn.Module):
    """Two linear layers on each token alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(x)))
        return out


class Block(nn.Module):
    """Attention and feedforward, each normalized before and added to what entered."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Feedforward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class Patches(nn.Module):
    """Cuts images into squares of `patch` pixels: [N, 3, size, size] → [N, squares, width]."""

    def __init__(self, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        squares: Tensor = self.proj(images).flatten(2).transpose(1, 2)
        return squares


class VisionTransformer(nn.Module):
    """Images [N, 3, size, size] → logits [N, classes], read from a token of its own."""

    def __init__(self, squares: int, patch: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, squares + 1, width))
        self.patch_embed = Patches(patch, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(12)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)
        self.apply(start)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        squares = self.patch_embed(images)
        first = self.cls_token.expand(squares.shape[0], -1, -1)
        x = torch.cat((first, squares), dim=1) + self.pos_embed
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits


def start(module: nn.Module) -> None:
    """Small random weights in linear layers, no bias."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def squares_of(size: int, patch: int) -> int:
    """How many patches an image has; its size must be a multiple of theirs."""
    if size < patch or size % patch:
        raise ValueError(f"--size {size} is not a multiple of its patches' {patch} pixels")
    return (size // patch) ** 2


def vit_small(size: int, classes: int) -> VisionTransformer:
    """Twelve blocks of width 384 over patches of 16 pixels."""
    return VisionTransformer(squares_of(size, 16), 16, 384, 6, classes)
