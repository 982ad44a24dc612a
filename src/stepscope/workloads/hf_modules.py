"""transformers' models in the form of ours: tensors in, tensors out."""

from importlib import import_module
from inspect import signature
from typing import Any

from torch import Tensor, nn

MOST_PLACES = 4096


class Classifier(nn.Module):
    """Passes its input by the name the library gives it and takes the logits [N, classes]."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**{self.name: inputs}).logits
        return logits


class Decoder(nn.Module):
    """Tokens [N, T] → logits [N, T, V]; with a cache, the logits [N, V] of the last token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        takes_one = "logits_to_keep" in signature(model.forward).parameters
        self.last_only = {"logits_to_keep": 1} if takes_one else {}

    def forward(self, tokens: Tensor, cache: Any = None) -> Tensor:
        if cache is None:
            whole: Tensor = self.model(input_ids=tokens, use_cache=False).logits
            return whole
        logits = self.model(
            input_ids=tokens, past_key_values=cache, use_cache=True, **self.last_only
        ).logits
        last: Tensor = logits[:, -1]
        return last

    def prefill(
        self, tokens: Tensor, cache: Any = None, length: int | None = None
    ) -> tuple[Tensor, Any]:
        """Reads a prompt into a cache: a new one for `length` tokens unless one is given."""
        if cache is None:
            cache = self.generate_cache(tokens.shape[0], length)
        else:
            cache.reset()
        logits: Tensor = self(tokens, cache)
        return logits, cache

    def decode(self, token: Tensor, cache: Any) -> Tensor:
        """Goes on by one token [N, 1]."""
        logits: Tensor = self(token, cache)
        return logits

    def generate_cache(self, batch: int, length: int | None = None) -> Any:
        """An empty static cache of the library's; it finds `batch` out by itself."""
        config = self.model.config
        places = getattr(config, "max_position_embeddings", None) or MOST_PLACES
        most = min(places, MOST_PLACES) if length is None else length
        return import_module("transformers").StaticCache(config=config, max_cache_len=most)
