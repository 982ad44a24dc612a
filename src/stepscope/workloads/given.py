"""The user's own models: what a factory returns, made into a model with inputs and a loss."""

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
from stepscope.workloads.user_code import module_of
from stepscope.workloads.workload import Workload

# Frames of the interpreter, of what is installed and of ours say little about a mistake.
_OURS = str(Path(__file__).parent)
_NOT_THEIRS = ("<", _OURS, *(get_path(name) for name in ("stdlib", "purelib", "platlib")))
_FORMS = "a module, (module, inputs) or (module, inputs, loss)"


def from_user(workload: Workload, factory: str, **where: str) -> Built:
    """What a factory in a file or an importable module returns; `where` the workload knows."""
    module = _attempt(workload.name, lambda: module_of(workload))
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
