"""The built-in workloads and their defaults."""

from typing import Any

from stepscope.workloads.workload import Workload


def _images(make: str, about: str, sizes: tuple[int, int, int], **more: Any) -> Workload:
    """`sizes`: pixels, classes, parameters."""
    size, classes, parameters = sizes
    more.setdefault("name", make.partition(":")[2])
    return _of("images", make, about, parameters, size=size, classes=classes, **more)


def _characters(make: str, about: str, parameters: int, **more: Any) -> Workload:
    sizes: dict[str, Any] = {"classes": 3, "length": 128, "vocabulary": 128}
    return _of("characters", make, about, parameters, **sizes, **more)


def _gpt(name: str, about: str, sizes: tuple[int, int, int, int], **more: Any) -> Workload:
    """`sizes`: layers, width, heads, parameters."""
    layers, width, heads, parameters = sizes
    more = {"length": 1024, "vocabulary": 50257, "batch": 8, "lr": 3e-4, **more}
    more["options"] = {"layers": layers, "width": width, "heads": heads}
    more["modes"] = ("train", "infer", "generate")
    return _of("language", "gpt:gpt", f"decoder with KV cache, {about}", parameters, name, **more)


def _of(task: str, make: str, about: str, parameters: int, name: str = "", **more: Any) -> Workload:
    make = f"stepscope.workloads.models.{make}"
    return Workload(name=name, about=about, task=task, make=make, parameters=parameters, **more)


_SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05}
_BYTES: dict[str, Any] = {"length": 128, "vocabulary": 256, "batch": 32, "lr": 1e-3}

BUILT_IN = (
    _images("mlp:mlp", "three linear layers, for smoke tests", (32, 10, 855_050), batch=64),
    _images(
        "simple_cnn:simple_cnn", "three conv blocks and two linear layers", (32, 10, 620_810)
    ),
    _images("resnet:resnet18", "residual network", (32, 10, 11_181_642), batch=128, **_SGD),
    _images("resnet:resnet50", "residual network", (224, 1000, 25_557_032), **_SGD),
    _images("efficientnet:efficientnet_b0", "separable convolutions", (224, 1000, 5_288_548)),
    _images("vit:vit_small", "vision transformer, patches of 16", (224, 1000, 22_050_664), lr=3e-4),
    _images(
        "transformer:patches", "encoder over patches of images", (32, 10, 4_770_570),
        name="transformer", lr=3e-4,
    ),
    _characters(
        "transformer:characters", "encoder over characters", 4_805_379,
        name="transformer:characters", lr=3e-4,
    ),
    _characters("lstm:lstm", "two bidirectional layers", 2_385_411, name="lstm", batch=64),
    _of(
        "segmentation", "unet:unet", "four blocks down and up with skips", 31_037_763, "unet",
        size=128, classes=3, batch=16,
    ),
    _gpt("gpt", "as gpt:small", (12, 768, 12, 124_439_808)),
    _gpt("gpt:tiny", "for tests", (4, 256, 4, 3_487_232), **_BYTES),
    _gpt("gpt:small", "124 M parameters", (12, 768, 12, 124_439_808)),
    _gpt("gpt:medium", "355 M parameters", (24, 1024, 16, 354_823_168)),
    _gpt("gpt:large", "774 M parameters", (36, 1280, 20, 774_030_080), batch=4),
    _gpt("gpt:xl", "1.3 B parameters", (24, 2048, 16, 1_313_626_112), batch=4),
)  # fmt: skip
