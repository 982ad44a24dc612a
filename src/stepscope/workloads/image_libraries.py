"""Image classifiers of torchvision and timm, with random weights. Nothing is downloaded."""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from stepscope.workloads.built import Built
from stepscope.workloads.libraries import library, told
from stepscope.workloads.workload import Workload

USUAL_SIZE = 224
# Their second output in training would need a loss of its own; and scipy would start them slowly.
_WITH_SIDE_OUTPUT = {"googlenet", "inception_v3"}


def torchvision_model(workload: Workload, name: str) -> Built:
    """One of torchvision's classifiers, at the size its published weights take unless asked."""
    models = library("torchvision.models")
    _check(name, models.list_models(module=models), "torchvision's classifiers")
    size = workload.size or _torchvision_size(models, name)
    more: dict[str, Any] = {}
    if name in _WITH_SIDE_OUTPUT:
        more = {"aux_logits": False, "init_weights": False}
    elif name.startswith("vit_"):
        more = {"image_size": size}
    with told("torchvision could not build it"):
        model = models.get_model(name, weights=None, num_classes=workload.classes, **more)
    return Built(model, None, replace(workload, size=size))


def _torchvision_size(models: Any, name: str) -> int:
    """Pixels that the first of the model's published weights were made for."""
    weights = list(models.get_model_weights(name))
    sizes = [getattr(one.transforms, "keywords", {}).get("crop_size") for one in weights]
    return next((size for size in sizes if isinstance(size, int)), USUAL_SIZE)


def timm_model(workload: Workload, name: str) -> Built:
    """One of timm's models, at the input size of its default configuration unless asked."""
    timm = library("timm")
    if not timm.is_model(name):
        _check(name, timm.list_models(), "timm's models")
    with told("timm knows no such weights"):
        usual = timm.get_pretrained_cfg(name)
    channels, size, _ = usual.input_size if usual is not None else (3, USUAL_SIZE, USUAL_SIZE)
    if channels != 3:
        raise ValueError(f"it takes images of {channels} channels, not 3")
    more: dict[str, Any] = {}
    if workload.size not in (None, size):
        size = workload.size
        more = {"img_size": size} if usual is not None and usual.fixed_input_size else {}
    with told("timm could not build it"):
        model = timm.create_model(name, pretrained=False, num_classes=workload.classes, **more)
    return Built(model, None, replace(workload, size=size))


def _check(name: str, known: Iterable[str], whose: str) -> None:
    names = list(known)
    if name in names:
        return
    near = get_close_matches(name, names, n=3)
    listed = ", ".join(near) if near else ", ".join(names[:5]) + " …"
    raise ValueError(f"not one of {whose} ({len(names)}): {listed}")
