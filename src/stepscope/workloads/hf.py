"""Models of transformers from their configuration, with random weights. Nothing is downloaded."""

import os
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stepscope.workloads.built import Built
from stepscope.workloads.hf_modules import Classifier, Decoder
from stepscope.workloads.image_libraries import USUAL_SIZE
from stepscope.workloads.libraries import library, told
from stepscope.workloads.workload import Workload

# A type's configuration may stand for billions of parameters: one with more than this many is
# built at the sizes below instead.
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


def model(workload: Workload, name: str, kind: str) -> Built:
    """The model of a type or of a folder's config.json, as a classifier or as a decoder."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    transformers = library("transformers")
    auto = getattr(transformers, AUTO[kind])
    with told("transformers could not build it"):
        config = _config(transformers.AutoConfig, auto, workload, name, kind)
    _check(workload, config)
    with told("transformers could not build it"):
        made = auto.from_config(config)
    if kind == "decoder":
        return Built(Decoder(made), None, _without_cache(workload, made))
    if kind == "sequence":
        return Built(Classifier(made, "input_ids"), None, workload)
    size = workload.size or getattr(config, "image_size", None)
    size = size if isinstance(size, int) else USUAL_SIZE
    return Built(Classifier(made, "pixel_values"), None, replace(workload, size=size))


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
        if _parameters(auto, config) > MOST_PARAMETERS:
            smaller = {key: value for key, value in SMALLER.items() if _settable(config, key)}
            config = factory.for_model(name, **wanted, **smaller)
    # Where a type has several classes the library looks through this, and does not expect None.
    config.architectures = config.architectures or []
    return config


def _check(workload: Workload, config: Any) -> None:
    longest = getattr(config, "max_position_embeddings", None)
    if workload.length and isinstance(longest, int) and 0 < longest < workload.length:
        raise ValueError(f"--length {workload.length} is more than its {longest} places")
    if workload.vocabulary and getattr(config, "vocab_size", 0) < workload.vocabulary:
        config.vocab_size = workload.vocabulary


def _settable(config: Any, key: str) -> bool:
    return hasattr(config, key) and not isinstance(getattr(type(config), key, None), property)


def _parameters(auto: Any, config: Any) -> int:
    """Counted without making them."""
    config.architectures = config.architectures or []
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in auto.from_config(config).parameters())


def _without_cache(workload: Workload, made: nn.Module) -> Workload:
    """Says that a decoder cannot generate here if it has no cache of keys and values."""
    if "past_key_values" in signature(made.forward).parameters:
        return workload
    return replace(workload, modes=tuple(mode for mode in workload.modes if mode != "generate"))
