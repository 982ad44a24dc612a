"""The user's own models: what a factory returns, made into a model with inputs and a loss."""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from sysconfig import get_path
from typing import Any

from torch import nn

from stepscope.record.errors import UsageError
from stepscope.workloads.built import Built, Given
from stepscope.workloads.classifier import as_classifier
from stepscope.workloads.examples import has_tensor, repeated
from stepscope.workloads.workload import Workload

# Frames of the interpreter, of what is installed and of this file say little about a mistake.
_NOT_THEIRS = ("<", __file__, *(get_path(name) for name in ("stdlib", "purelib", "platlib")))
_FORMS = "a module, (module, inputs) or (module, inputs, loss)"


def from_file(workload: Workload, file: str, factory: str) -> Built:
    """What a factory in a file returns; modules beside the file can be imported from it."""
    path = Path(file).resolve()
    sys.path.insert(0, str(path.parent))
    return _built(workload, factory, lambda: _load(path))


def from_module(workload: Workload, module: str, factory: str) -> Built:
    """What a factory of an importable module returns."""
    return _built(workload, factory, lambda: importlib.import_module(module))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Workers of a DataLoader and pickles look classes up under the name of their module.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def _built(workload: Workload, factory: str, load: Callable[[], Any]) -> Built:
    module = _attempt(workload.name, load)
    named = getattr(module, factory, None)
    if isinstance(named, nn.Module):
        made: Any = named
    elif callable(named):
        made = _attempt(workload.name, named)
    else:
        raise UsageError(f"{workload.name}: {factory} is {_kind(named)}, not a function or module")
    return _accept(workload, made)


def _accept(workload: Workload, made: Any) -> Built:
    parts = tuple(made) if isinstance(made, tuple | list) else (made,)
    if not (1 <= len(parts) <= 3 and isinstance(parts[0], nn.Module)):
        raise UsageError(f"{workload.name}: returned {_kind(made)}; a factory returns {_FORMS}")
    model, inputs, loss = (*parts, None, None)[:3]
    if len(parts) == 1:
        return as_classifier(workload, model)
    if loss is not None and not callable(loss):
        raise UsageError(f"{workload.name}: its loss is {_kind(loss)}, not a function of outputs")
    modes = workload.modes if loss is not None else ("infer",)
    given = Given(_inputs(workload.name, inputs), loss)
    return Built(model, given, replace(workload, modes=modes))


def _inputs(name: str, inputs: Any) -> Callable[[int], Any]:
    if has_tensor(inputs):
        return lambda batch: repeated(inputs, batch)
    if callable(inputs):
        function: Callable[[int], Any] = inputs
        return function
    raise UsageError(f"{name}: its inputs are {_kind(inputs)}, not tensors or a function of batch")


def _attempt(name: str, action: Callable[[], Any]) -> Any:
    """What the user's code returns; where it raises, says what and at which of its lines."""
    try:
        return action()
    except (Exception, SystemExit) as problem:
        frames = [
            frame
            for frame in traceback.extract_tb(problem.__traceback__)
            if not frame.filename.startswith(_NOT_THEIRS)
        ]
        where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
        text = " ".join(str(problem).split())
        raise UsageError(f"{name}: {type(problem).__name__}{where}: {text}") from problem


def _kind(thing: Any) -> str:
    return "None" if thing is None else f"a {type(thing).__name__}"
