"""What the installed transformers can build, read from its source without importing it."""

import ast
import json
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from stepscope.record.errors import UsageError
from stepscope.workloads.workload import Workload

_MAKE = "stepscope.workloads.hf:model"
_EXAMPLES = "gpt2, llama, bert, distilbert, vit or a folder with config.json"
_MAPS = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "decoder",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "sequence",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "images",
}
_TOKENS = 1000


def workload(spec: str, name: str, library: Path) -> Workload:
    """The workload of a model type (gpt2, bert …) or of a folder that holds config.json."""
    folder = Path(name)
    if (folder / "config.json").is_file() or "/" in name:
        config = _read(spec, folder)
        kind = _kind(spec, str(config.get("model_type")), library)
        vocabulary = config.get("vocab_size")
        return _of_kind(spec, kind, name, vocabulary if isinstance(vocabulary, int) else _TOKENS)
    return _of_kind(spec, _kind(spec, name, library), name, _TOKENS)


def _of_kind(spec: str, kind: str, name: str, vocabulary: int) -> Workload:
    """`vocabulary` is how many token ids the data may use; the model's own may be larger."""
    options = {"name": name, "kind": kind}
    about = "transformers', random weights"
    if kind == "images":
        return Workload(spec, about, "images", _MAKE, options, classes=1000, lr=3e-4)
    text: dict[str, Any] = {"length": 128, "vocabulary": vocabulary, "batch": 8, "lr": 3e-4}
    if kind == "sequence":
        return Workload(spec, about, "characters", _MAKE, options, classes=3, **text)
    return Workload(spec, about, "language", _MAKE, options, ("train", "infer", "generate"), **text)


def _kind(spec: str, model_type: str, library: Path) -> str:
    """decoder, sequence (an encoder that classifies) or images."""
    types = _types(library)
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


def _read(spec: str, folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
    except OSError:
        raise UsageError(f"{spec}: {path} is not there (nothing is downloaded)") from None
    except ValueError:
        raise UsageError(f"{spec}: {path} is not JSON") from None
    if not isinstance(config, dict) or "model_type" not in config:
        raise UsageError(f"{spec}: {path} names no model_type")
    return config


@cache
def _types(library: Path) -> dict[str, set[str]]:
    """Model types by what they can be, from the library's tables of classes."""
    found: dict[str, set[str]] = {kind: set() for kind in _MAPS.values()}
    tree = ast.parse((library / "models" / "auto" / "modeling_auto.py").read_bytes())
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(args=[pairs])) if (
                name in _MAPS
            ):
                found[_MAPS[name]] = {str(key) for key, _ in ast.literal_eval(pairs)}
    return found
