"""Models of torchvision, timm and transformers with random weights, tensors in, tensors out, like
ours. Nothing is downloaded; a library's exceptions become one line.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.workloads.catalogue import Workload
from stepscope.workloads.models.build import BuiltModel


def _import_library(name: str) -> Any:
    with _explain_errors(f"{name} cannot be imported"):
        return import_module(name)


@contextmanager
def _explain_errors(what: str) -> Iterator[None]:
    """Turns the library's exceptions into a ValueError that begins with `what`."""
    try:
        yield
    except Exception as problem:
        reason = str(problem) or type(problem).__name__
        raise ValueError(f"{what}: {reason}") from problem


_USUAL_SIZE = 224
# A second training output would need its own loss; initialising with scipy is slow.
_WITH_SIDE_OUTPUT = {"googlenet", "inception_v3"}


def torchvision_model(workload: Workload, name: str) -> BuiltModel:
    """One of torchvision's classifiers, by default at the size of its published weights."""
    models = _import_library("torchvision.models")
    _check_name(name, models.list_models(module=models), "torchvision's classifiers")
    size = workload.size
    if size is None:  # the input size of the model's first published weights
        weights = list(models.get_model_weights(name))
        sizes = [getattr(one.transforms, "keywords", {}).get("crop_size") for one in weights]
        size = next((size for size in sizes if isinstance(size, int)), _USUAL_SIZE)
    more: dict[str, Any] = {}
    if name in _WITH_SIDE_OUTPUT:
        more = {"aux_logits": False, "init_weights": False}
    elif name.startswith("vit_"):
        more = {"image_size": size}
    with _explain_errors("torchvision could not build it"):
        model = models.get_model(name, weights=None, num_classes=workload.classes, **more)
    return BuiltModel(model, None, replace(workload, size=size))


def timm_model(workload: Workload, name: str) -> BuiltModel:
    """One of timm's models, by default at the input size of its configuration."""
    timm = _import_library("timm")
    if not timm.is_model(name):
        _check_name(name, timm.list_models(), "timm's models")
    with _explain_errors("timm has no such weights"):
        usual = timm.get_pretrained_cfg(name)
    channels, size, _ = usual.input_size if usual is not None else (3, _USUAL_SIZE, _USUAL_SIZE)
    if channels != 3:
        raise ValueError(f"it takes images of {channels} channels, not 3")
    more: dict[str, Any] = {}
    if workload.size not in (None, size):
        size = workload.size
        more = {"img_size": size} if usual is not None and usual.fixed_input_size else {}
    with _explain_errors("timm could not build it"):
        model = timm.create_model(name, pretrained=False, num_classes=workload.classes, **more)
    return BuiltModel(model, None, replace(workload, size=size))


def _check_name(name: str, known: Iterable[str], whose: str) -> None:
    names = list(known)
    if name in names:
        return
    near = get_close_matches(name, names, n=3)
    listed = ", ".join(near) if near else ", ".join(names[:5]) + " …"
    raise ValueError(f"not one of {whose} ({len(names)}): {listed}")


MOST_PLACES = 4096


class _Classifier(nn.Module):
    """Passes its input under the library's name and returns the logits [N, classes]."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(**{self.name: inputs}).logits


class _Decoder(nn.Module):
    """Tokens [N, T] → logits [N, T, V]; with a cache, the logits [N, V] of the last token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        takes_one = "logits_to_keep" in signature(model.forward).parameters
        self.last_only = {"logits_to_keep": 1} if takes_one else {}

    def forward(self, tokens: Tensor, cache: Any = None) -> Tensor:
        if cache is None:
            return self.model(input_ids=tokens, use_cache=False).logits
        cached = {"past_key_values": cache, "use_cache": True, **self.last_only}
        return self.model(input_ids=tokens, **cached).logits[:, -1]

    def prefill(
        self, tokens: Tensor, cache: Any = None, length: int | None = None
    ) -> tuple[Tensor, Any]:
        """Reads a prompt into a cache: a new one for `length` tokens unless one is given."""
        if cache is None:
            cache = self.generate_cache(tokens.shape[0], length)
        else:
            cache.reset()
        return self(tokens, cache), cache

    def decode(self, token: Tensor, cache: Any) -> Tensor:
        """Advances by one token [N, 1]."""
        return self(token, cache)

    def generate_cache(self, batch: int, length: int | None = None) -> Any:
        """An empty static cache of the library, which takes its batch size from its first use."""
        config = self.model.config
        places = getattr(config, "max_position_embeddings", None) or MOST_PLACES
        most = min(places, MOST_PLACES) if length is None else length
        return import_module("transformers").StaticCache(config=config, max_cache_len=most)


# A type's default configuration may have billions of parameters: beyond this many, the sizes below
# are used instead.
MOST_PARAMETERS = 200_000_000
SMALLER = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
AUTO = {
    "decoder": "AutoModelForCausalLM",
    "sequence": "AutoModelForSequenceClassification",
    "images": "AutoModelForImageClassification",
}


def transformers_model(workload: Workload, name: str, kind: str) -> BuiltModel:
    """The model of a type or of a folder's config.json, as a classifier or as a decoder."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = _import_library("transformers")
    auto = getattr(transformers, AUTO[kind])
    with _explain_errors("transformers could not build it"):
        config = _config(transformers.AutoConfig, auto, workload, name, kind)
    longest = getattr(config, "max_position_embeddings", None)
    if workload.length and isinstance(longest, int) and 0 < longest < workload.length:
        raise ValueError(f"--length {workload.length} is more than its {longest} positions")
    if workload.vocabulary and getattr(config, "vocab_size", 0) < workload.vocabulary:
        config.vocab_size = workload.vocabulary
    with _explain_errors("transformers could not build it"):
        made = auto.from_config(config)
    if kind == "decoder":
        if "past_key_values" not in signature(made.forward).parameters:  # so it cannot generate
            modes = tuple(mode for mode in workload.modes if mode != "generate")
            workload = replace(workload, modes=modes)
        return BuiltModel(_Decoder(made), None, workload)
    if kind == "sequence":
        return BuiltModel(_Classifier(made, "input_ids"), None, workload)
    size = workload.size or getattr(config, "image_size", None)
    size = size if isinstance(size, int) else _USUAL_SIZE
    return BuiltModel(_Classifier(made, "pixel_values"), None, replace(workload, size=size))


def _config(factory: Any, auto: Any, workload: Workload, name: str, kind: str) -> Any:
    wanted: dict[str, Any] = {}
    if kind != "decoder":
        wanted["num_labels"] = workload.classes
    if kind == "images" and workload.size is not None:
        wanted["image_size"] = workload.size
    if (Path(name) / "config.json").is_file():
        config = factory.from_pretrained(name, local_files_only=True, **wanted)
    else:
        config = factory.for_model(name, **wanted)
        config.architectures = config.architectures or []
        with torch.device("meta"):  # to count parameters without making them
            parameters = sum(part.numel() for part in auto.from_config(config).parameters())
        if parameters > MOST_PARAMETERS:
            made = type(config)
            smaller = {
                key: value
                for key, value in SMALLER.items()
                if hasattr(config, key) and not isinstance(getattr(made, key, None), property)
            }
            config = factory.for_model(name, **wanted, **smaller)
    # If a type has several classes the library iterates over this and does not expect None.
    config.architectures = config.architectures or []
    return config
