"""A GPT-2-like decoder with a KV cache.

Training and whole sequences: `model(tokens)` gives logits [N, T, V]. Generation: `logits, cache =
model.prefill(prompt, cache)`, then `logits = model.decode(token, cache)` per token [N, 1]; both
give the next token's logits [N, V]. The cache is allocated once and its position is a tensor, so
every `decode` does the same work on the same memory.
"""

import sys
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class _LayerCache:
    """One layer's keys and values, each [N, heads, length, head width]."""

    keys: Tensor
    values: Tensor

    def write(self, places: Tensor, key: Tensor, value: Tensor) -> None:
        """Store tokens' keys and values at their positions; gradients do not pass through a
        cache."""
        self.keys.index_copy_(2, places, key.detach().to(self.keys.dtype))
        self.values.index_copy_(2, places, value.detach().to(self.values.dtype))


@dataclass(frozen=True, slots=True)
class _KVCache:
    """All layers' caches, and the next token's position: an int64 tensor [1]."""

    layers: tuple[_LayerCache, ...]
    position: Tensor

    def visible(self) -> Tensor:
        """Positions visible to the next token: bool [1, length], including its own."""
        places = torch.arange(self.layers[0].keys.shape[2], device=self.position.device)
        return (places <= self.position)[None]


def _fixed_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros at a fixed address, which the compiler is told if it is in use: otherwise it records no
    CUDA graph of a call that writes to its inputs. Without compiling, it is not imported."""
    tensor = torch.zeros(shape, dtype=dtype, device=device)
    compiler = sys.modules.get("torch._dynamo")
    if compiler is not None:
        compiler.mark_static_address(tensor, guard=False)
    return tensor


class Attention(nn.Module):
    """Causal attention: each token sees itself and those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(
        self, x: Tensor, places: Tensor, visible: Tensor | None, cache: _LayerCache | None
    ) -> Tensor:
        batch, tokens, width = x.shape
        split = self.c_attn(x).reshape(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        if cache is not None:
            cache.write(places, key, value)
        if cache is not None and visible is not None:
            key, value = cache.keys.to(query.dtype), cache.values.to(query.dtype)
        seen = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=visible, is_causal=visible is None
        )
        return self.c_proj(seen.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    """Attention and feedforward, pre-normalized, with residual connections."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(
        self, x: Tensor, places: Tensor, visible: Tensor | None, cache: _LayerCache | None
    ) -> Tensor:
        x = x + self.attn(self.ln_1(x), places, visible, cache)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Tokens int64 [N, T] → logits [N, T, V]; T at most `length`, or `positions` if more."""

    def __init__(
        self,
        vocabulary: int,
        length: int,
        layers: int,
        width: int,
        heads: int,
        positions: int = 1024,
    ) -> None:
        super().__init__()
        self.positions, self.heads = max(length, positions), heads
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(self.positions, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for block in self.h:
            for last in (block.attn.c_proj, block.mlp[2]):
                nn.init.normal_(last.weight, std=0.02 / (2 * layers) ** 0.5)

    def forward(self, tokens: Tensor, cache: _KVCache | None = None) -> Tensor:
        """Without a cache, logits of every token. With one, of the last token only: a single token
        continues the cache, several are a prompt that restarts it."""
        count = tokens.shape[1]
        if cache is not None and count == 1:
            places, visible = cache.position, cache.visible()
        else:
            places, visible = torch.arange(count, device=tokens.device), None
        x = self.wte(tokens) + self.wpe(places)
        for index, block in enumerate(self.h):
            x = block(x, places, visible, None if cache is None else cache.layers[index])
        if cache is None:
            return self.lm_head(self.ln_f(x))
        cache.position.copy_(places[-1:] + 1)
        return self.lm_head(self.ln_f(x[:, -1]))

    def generate_cache(self, batch: int, length: int | None = None) -> _KVCache:
        """An empty cache for `length` tokens (None: as many as the model has positions)."""
        length = self.positions if length is None else length
        if length > self.positions:
            raise ValueError(f"{length} tokens exceed the model's {self.positions} positions")
        table = self.wte.weight
        shape = (batch, self.heads, length, table.shape[1] // self.heads)
        layers = [
            _LayerCache(*(_fixed_zeros(shape, table.dtype, table.device) for _ in range(2)))
            for _ in self.h
        ]
        return _KVCache(tuple(layers), _fixed_zeros((1,), torch.int64, table.device))

    def prefill(
        self, tokens: Tensor, cache: _KVCache | None = None, length: int | None = None
    ) -> tuple[Tensor, _KVCache]:
        """Reads a prompt [N, T] into a cache: a new one of `length` tokens unless one is given."""
        if cache is None:
            cache = self.generate_cache(tokens.shape[0], length)
        cache.position.zero_()
        return self(tokens, cache), cache

    def decode(self, token: Tensor, cache: _KVCache) -> Tensor:
        """Advances by one token [N, 1], at most as often as the cache has room."""
        return self(token, cache)
