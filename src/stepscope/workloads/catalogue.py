"""Every workload: the built-in ones with their defaults, the user's own factories, and models of
torchvision, timm and transformers. Nothing is imported to list them; no torch here.
"""

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError


@dataclass(frozen=True, slots=True)
class Workload:
    """A model by name. `make` is module:function, called in a child; size is in pixels, length in
    tokens or characters per sample. None: not applicable, or unknown until the model is built."""

    name: str
    about: str
    task: str
    make: str
    options: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ("train", "infer")
    size: int | None = None
    classes: int | None = None
    length: int | None = None
    vocabulary: int | None = None
    batch: int = 32
    optimizer: str = "adamw"
    lr: float = 1e-3
    parameters: int | None = None


_MODELS = "stepscope.workloads.models."
_IMAGENET: dict[str, Any] = {"task": "images", "size": 224, "classes": 1000}
_SMALL: dict[str, Any] = {"task": "images", "size": 32, "classes": 10}
_TEXT: dict[str, Any] = {"task": "characters", "classes": 3, "length": 128, "vocabulary": 128}
_SHAPES: dict[str, Any] = {"task": "segmentation", "size": 128, "classes": 3}
_SGD = {"optimizer": "sgd", "lr": 0.05}
_LOW_LR = {"lr": 3e-4}
_TINY: dict[str, Any] = {"length": 128, "vocabulary": 256, "batch": 32, "lr": 1e-3}

_BUILT_IN = (  # name, factory, parameters, batch
    ("mlp", "small:MLP", 855_050, 64, "three linear layers, for smoke tests", _SMALL),
    (
        "simple_cnn",
        "small:SimpleCNN",
        620_810,
        32,
        "three conv blocks and two linear layers",
        _SMALL,
    ),
    ("resnet18", "convnets:resnet18", 11_181_642, 128, "residual network", _SMALL | _SGD),
    ("resnet50", "convnets:resnet50", 25_557_032, 32, "residual network", _IMAGENET | _SGD),
    (
        "efficientnet_b0",
        "convnets:EfficientNet",
        5_288_548,
        32,
        "separable convolutions",
        _IMAGENET,
    ),
    (
        "vit_small",
        "transformer:VisionTransformer",
        22_050_664,
        32,
        "vision transformer, patches of 16",
        _IMAGENET | _LOW_LR,
    ),
    (
        "transformer",
        "transformer:patches",
        4_770_570,
        32,
        "encoder over patches of images",
        _SMALL | _LOW_LR,
    ),
    (
        "transformer:characters",
        "transformer:characters",
        4_805_379,
        32,
        "encoder over characters",
        _TEXT | _LOW_LR,
    ),
    ("lstm", "small:CharacterLSTM", 2_385_411, 64, "two bidirectional layers", _TEXT),
    (
        "unet",
        "convnets:UNet",
        31_037_763,
        16,
        "four blocks down and up, with skip connections",
        _SHAPES,
    ),
)


def _gpt(
    name: str, about: str, parameters: int, layers: int, width: int, heads: int, **more: Any
) -> Workload:
    usual: dict[str, Any] = {"length": 1024, "vocabulary": 50257, "batch": 8, "lr": 3e-4, **more}
    return Workload(
        name,
        f"decoder with KV cache, {about}",
        "language",
        f"{_MODELS}gpt:GPT",
        {"layers": layers, "width": width, "heads": heads},
        ("train", "infer", "generate"),
        parameters=parameters,
        **usual,
    )


_LANGUAGE = (
    _gpt("gpt", "as gpt:small", 124_439_808, 12, 768, 12),
    _gpt("gpt:tiny", "for tests", 3_487_232, 4, 256, 4, **_TINY),
    _gpt("gpt:small", "124 M parameters", 124_439_808, 12, 768, 12),
    _gpt("gpt:medium", "355 M parameters", 354_823_168, 24, 1024, 16),
    _gpt("gpt:large", "774 M parameters", 774_030_080, 36, 1280, 20, batch=4),
    _gpt("gpt:xl", "1.3 B parameters", 1_313_626_112, 24, 2048, 16, batch=4),
)
WORKLOADS: dict[str, Workload] = {
    name: Workload(name, about, make=_MODELS + make, parameters=parameters, batch=batch, **more)
    for name, make, parameters, batch, about, more in _BUILT_IN
} | {workload.name: workload for workload in _LANGUAGE}

_EXAMPLES = "gpt2, llama, bert, distilbert, vit or a folder with config.json"
_MAPS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "decoder",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "sequence",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "images",
}
_TOKENS = 1000


def transformers_workload(spec: str, name: str, library: Path) -> Workload:
    """The workload of a model type (gpt2, bert …) or of a folder with config.json. Its vocabulary
    is the number of token ids the data may use; the model's own may be larger."""
    vocabulary, model_type = _TOKENS, name
    path = Path(name) / "config.json"
    if "/" in name or path.is_file():
        try:
            config = json.loads(path.read_text())
        except OSError:
            raise UsageError(f"{spec}: {path} not found (nothing is downloaded)") from None
        except ValueError:
            raise UsageError(f"{spec}: {path} is not JSON") from None
        if not isinstance(config, dict) or "model_type" not in config:
            raise UsageError(f"{spec}: {path} has no model_type")
        model_type = str(config["model_type"])
        vocabulary = config["vocab_size"] if isinstance(config.get("vocab_size"), int) else _TOKENS
    kind = _model_kind(spec, model_type, library)
    more: dict[str, Any] = {"lr": 3e-4}
    if kind == "images":
        more |= {"task": "images", "classes": 1000}
    else:
        more |= {"length": 128, "vocabulary": vocabulary, "batch": 8}
        if kind == "sequence":
            more |= {"task": "characters", "classes": 3}
        else:
            more |= {"task": "language", "modes": ("train", "infer", "generate")}
    make, about = f"{_MODELS}from_libraries:transformers_model", "transformers', random weights"
    return Workload(spec, about, make=make, options={"name": name, "kind": kind}, **more)


def _model_kind(spec: str, model_type: str, library: Path) -> str:
    """decoder, sequence (an encoder that classifies) or images."""
    types = _model_types(library)
    if model_type in types["images"]:
        return "images"
    if model_type in types["masked"] and model_type in types["sequence"]:
        return "sequence"
    if model_type in types["decoder"]:
        return "decoder"
    possible = sorted(types["images"] | types["decoder"] | types["masked"] & types["sequence"])
    near = get_close_matches(model_type, possible, n=3)
    hint = f"did you mean {' or '.join(near)}? Use" if near else "use"
    raise UsageError(f"{spec}: transformers builds no {model_type} here: {hint} {_EXAMPLES}")


@cache
def _model_types(library: Path) -> dict[str, set[str]]:
    """Model types by kind, from the library's class tables."""
    found: dict[str, set[str]] = {kind: set() for kind in _MAPS.values()}
    tree = ast.parse((library / "models" / "auto" / "modeling_auto.py").read_bytes())
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[pairs])) if (
                name in _MAPS
            ):
                found[_MAPS[name]] = {str(key) for key, _ in ast.literal_eval(pairs)}
    return found


LIBRARIES = ("torchvision", "timm", "hf")


def _user_workload(spec: str, place: str, factory: str) -> Workload:
    """The model that a function (or module class) in the user's file or module builds. Modules are
    those Python can import from the working directory or its path."""
    if place.endswith(".py"):
        kind, path, whose = "file", Path(place), Path(place).name
        if not path.is_file():
            raise UsageError(f"{spec}: no file {place}")
    else:
        found = _module_path(place)
        if found is None:
            raise UsageError(f"{spec}: no module {place} here or on sys.path")
        kind, path, whose = "module", found, place
    if path.suffix == ".py":
        _check_defines(spec, path, factory)
    about, make = f"{factory} of {whose}", f"{_MODELS}from_user:from_user"
    return Workload(spec, about, "user", make, {kind: place, "factory": factory})


def installed(library: str, spec: str) -> Path:
    """The folder of an installed library."""
    found = PathFinder.find_spec(library)
    if found is None or found.origin is None:
        raise UsageError(f"{spec} needs {library}, which is not installed: pip install {library}")
    return Path(found.origin).parent


def _module_path(module: str) -> Path | None:
    """A module's path; its parents are looked up, not imported. None: not found."""
    places, found = ["", *sys.path], None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = PathFinder.find_spec(name, places)
        if found is None:
            return None
        places = list(found.submodule_search_locations or [])
    return Path(found.origin) if found is not None and found.origin else None


def _check_defines(spec: str, path: Path, factory: str) -> None:
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None)
        where = f"{path.name}:{line}" if line else path.name
        raise UsageError(f"{spec}: {where} is not Python: {problem.args[0]}") from None
    names = set(_bound_names(tree.body))
    if factory in names or "*" in names:
        return
    own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    near = get_close_matches(factory, own, n=1)
    listed = [*near, *(name for name in own if name not in near and not name.startswith("_"))]
    raise UsageError(
        f"{spec}: {path.name} has no {factory or 'factory of that name'}; "
        f"it has {', '.join(listed[:12]) or 'no function or class'}"
    )


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Names bound outside functions and classes; "*" if they cannot be known."""
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Assign() | ast.AnnAssign():
                names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
                yield from (node.id for node in names if isinstance(node.ctx, ast.Store))
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                for field in ("body", "orelse", "finalbody"):
                    yield from _bound_names(getattr(statement, field, []))
                for handler in getattr(statement, "handlers", []):
                    yield from _bound_names(handler.body)


_ELSEWHERE = "file.py:factory, module:factory, torchvision:NAME, timm:NAME, hf:NAME"


def find_workload(spec: str) -> Workload:
    """The workload of a built-in name, file.py:factory, module:factory or library:NAME. Raises
    UsageError in one line with the alternatives, nearest name first."""
    if spec in WORKLOADS:
        return WORKLOADS[spec]
    library, _, name = spec.partition(":")
    if library in LIBRARIES:
        if not name:
            raise UsageError(f"{spec}: name a model, {library}:NAME")
        if library == "hf":
            return transformers_workload(spec, name, installed("transformers", spec))
        installed(library, spec)
        make, about = f"{_MODELS}from_libraries:{library}_model", f"{library}'s, random weights"
        return Workload(spec, about, "images", make, {"name": name}, classes=1000)
    head, colon, rest = spec.rpartition(":")
    if spec.endswith(".py"):
        raise UsageError(f"{spec}: name the factory that builds the model, {spec}:factory")
    if head.endswith(".py") or (colon and head and rest and head not in WORKLOADS):
        return _user_workload(spec, head, rest)
    near = get_close_matches(spec, WORKLOADS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    names = ", ".join(WORKLOADS)
    raise UsageError(f"no workload named {spec}: {hint} {names}; or {_ELSEWHERE}")
