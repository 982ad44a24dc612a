"""The user's own models: turns what a factory in a file or module returns into a model with inputs
and a loss. A module without inputs is taken as an image classifier, after a check.
"""

import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from stepscope.record.errors import UsageError
from stepscope.workloads.catalogue import Workload
from stepscope.workloads.models.build import BuiltModel, UserInputs


def import_user_module(workload: Workload) -> ModuleType:
    """The module that defines the workload's factory. Raises what the user's code raises."""
    if "module" in workload.options:
        sys.path.insert(0, "")
        return import_module(workload.options["module"])
    path = Path(workload.options["file"]).resolve()
    sys.path.insert(0, str(path.parent))
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_of_the_user"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} cannot be imported")
    module = module_from_spec(spec)
    sys.modules[name] = module  # where workers and pickle look up classes
    spec.loader.exec_module(module)
    return module


def repeat_to_batch(nest: Any, batch: int) -> Any:
    """The same nest with `batch` samples, repeating the example's. A tensor is a batch if its first
    dimension equals that of the first tensor."""
    first = _first(nest)
    if first is None or first.dim() == 0:
        return nest
    samples = first.shape[0]
    return _map(nest, samples, torch.arange(batch) % samples)


def _first(nest: Any) -> Tensor | None:
    if isinstance(nest, Tensor):
        return nest
    items = nest.values() if isinstance(nest, Mapping) else nest
    if isinstance(nest, Mapping | tuple | list):
        return next((found for item in items if (found := _first(item)) is not None), None)
    return None


def _map(nest: Any, samples: int, rows: Tensor) -> Any:
    if isinstance(nest, Tensor):
        batched = nest.dim() > 0 and nest.shape[0] == samples
        return nest.index_select(0, rows.to(nest.device)) if batched else nest
    if isinstance(nest, Mapping):
        return {key: _map(item, samples, rows) for key, item in nest.items()}
    if isinstance(nest, tuple | list):
        items = [_map(item, samples, rows) for item in nest]
        named = isinstance(nest, tuple) and hasattr(nest, "_fields")
        return type(nest)(*items) if named else type(nest)(items)
    return nest


CLASSIFIER_PIXELS = 224
_OTHER_KINDS = "return (module, inputs, loss) for a model of another kind"


def _as_classifier(workload: Workload, model: nn.Module) -> BuiltModel:
    """The module at the requested size or 224 pixels, with as many classes as outputs for one
    image; all parts keep their training mode."""
    size = workload.size or CLASSIFIER_PIXELS
    training = [(module, module.training) for module in model.modules()]
    parameter = next(model.parameters(), torch.zeros(()))
    image = torch.zeros(1, 3, size, size, dtype=parameter.dtype, device=parameter.device)
    try:
        with torch.no_grad():
            outputs = model.eval()(image)
    except Exception as problem:
        text = " ".join(str(problem).split())
        raise UsageError(
            f"{workload.name}: it does not take images [N, 3, {size}, {size}] ({text}): "
            f"use --size, or {_OTHER_KINDS}"
        ) from problem
    finally:
        for module, mode in training:
            module.training = mode
    if not isinstance(outputs, Tensor) or outputs.dim() != 2:
        form = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UsageError(
            f"{workload.name}: returns {form}, not logits [N, classes]: {_OTHER_KINDS}"
        )
    classes = outputs.shape[1]
    if workload.classes not in (None, classes):
        raise UsageError(f"{workload.name}: it has {classes} classes, not {workload.classes}")
    return BuiltModel(model, None, replace(workload, task="images", size=size, classes=classes))


# Frames of the interpreter, of installed packages and of ours say little about a mistake.
_FOLDERS = (f"^{re.escape(str(one))}/" for one in (Path(__file__).parents[1], get_path("stdlib")))
_LIBRARY = re.compile("|".join(("site-packages", "dist-packages", "^<", *_FOLDERS)))
_PLACE = re.compile(r'File "(.+)", line (\d+)')
_FORMS = "a module, (module, inputs) or (module, inputs, loss)"


def from_user(workload: Workload, factory: str, **where: str) -> BuiltModel:
    """The model that a factory in a file or importable module returns."""
    module = _attempt(workload.name, lambda: import_user_module(workload))
    named = getattr(module, factory, None)
    if isinstance(named, nn.Module):
        made: Any = named
    elif callable(named):
        made = _attempt(workload.name, named)
    else:
        raise UsageError(f"{workload.name}: {factory} is {_kind(named)}, not a function or module")
    parts = tuple(made) if isinstance(made, tuple | list) else (made,)
    if not (1 <= len(parts) <= 3 and isinstance(parts[0], nn.Module)):
        raise UsageError(f"{workload.name}: returned {_kind(made)}; a factory returns {_FORMS}")
    model, inputs, loss = (*parts, None, None)[:3]
    if len(parts) == 1:
        return _as_classifier(workload, model)
    if loss is not None and not callable(loss):
        raise UsageError(f"{workload.name}: its loss is {_kind(loss)}, not a function of outputs")
    if _first(inputs) is not None:
        user = UserInputs(lambda batch: repeat_to_batch(inputs, batch), loss)
    elif callable(inputs):
        user = UserInputs(inputs, loss)
    else:
        raise UsageError(
            f"{workload.name}: its inputs are {_kind(inputs)}, not tensors or a function of batch"
        )
    modes = workload.modes if loss is not None else ("infer",)
    return BuiltModel(model, user, replace(workload, modes=modes))


def _attempt(name: str, action: Callable[[], Any]) -> Any:
    """What the user's code returns; its exceptions become one line."""
    try:
        return action()
    except (Exception, SystemExit) as problem:
        raise UsageError(f"{name}: {one_line_error(problem)}") from problem


def one_line_error(problem: BaseException) -> str:
    """An exception in one line, with the last line of the user's own code."""
    text = str(problem)
    if text.startswith("Caught ") and "\n" in text:  # in a worker, with its traceback
        places = _PLACE.findall(text)
        text = text.strip().splitlines()[-1].strip()
    else:
        frames = traceback.extract_tb(problem.__traceback__)
        places = [(frame.filename, frame.lineno) for frame in frames]
        text = f"{type(problem).__name__}: {' '.join(text.split())}".removesuffix(": ")
    own = [f"{Path(f).name}:{n}" for f, n in places if not _LIBRARY.search(f)]
    return f"{text} ({own[-1]})" if own else text


def _kind(thing: Any) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"
