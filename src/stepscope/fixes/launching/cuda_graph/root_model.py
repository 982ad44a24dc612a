"""Root models and their graphs: when to record, use or bypass one, what rules it out, and the state
a recording must restore."""

import random
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from stepscope.fixes.base import FixContext
from stepscope.fixes.inspect.models import StateSnapshot, is_checkpointed, parameters_of
from stepscope.fixes.inspect.user_code import raise_location
from stepscope.fixes.launching.compile import is_compiled
from stepscope.fixes.launching.cuda_graph.model import (
    FlatTensors,
    GraphedModel,
    GraphMisuseError,
    GraphRecorder,
    flatten_tensors,
)
from stepscope.fixes.lazy import torch
from stepscope.record.fix import (
    MODEL,
    PROGRAM_COMPILES,
    TORCHSCRIPT,
    Applied,
    NotApplied,
    Reason,
    Target,
)

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GRAPH = Target("graph", "forward and backward of {object}, called{at}, for inputs of {detail}")
NOT_ON_GPU = Reason("not_on_gpu", "{subject}: it or its inputs are not on the GPU")
SEVERAL_GPUS = Reason("several_gpus", "{subject}: it is spread over several GPUs")
SEVERAL_PROCESSES = Reason(
    "several_processes", "{subject}: distributed training communicates in backward"
)
CHECKPOINTED = Reason("checkpointed", "{subject}: gradient checkpointing cannot be captured")
HOOKS = Reason("hooks", "{subject}: {code} has hooks, which a graph would not call")
PARAMETER_HOOKS = Reason(
    "parameter_hooks", "{subject}: its parameters have hooks, which a graph would not call"
)
RECURRENT = Reason(
    "recurrent", "{subject}: {code} is recurrent and keeps state that a graph cannot restore"
)
BUFFER_GRADIENTS = Reason("buffer_gradients", "{subject}: it has buffers that require gradients")
STRANGE_INPUT = Reason(
    "strange_input", "{subject}: called with a {code}, which a graph cannot take"
)
STRANGE_OUTPUT = Reason("strange_output", "{subject}: returns a {code}, which a graph cannot")
NO_GRADIENT = Reason("no_gradient", "{subject}: its outputs get no gradient")
CHANGES_ATTRIBUTE = Reason(
    "changes_attribute", "{subject}: its forward changes {code}, which a graph would not"
)
KEEPS_CHANGING = Reason(
    "keeps_changing", "{subject}: the program keeps changing {code}, which a graph would freeze"
)
HOST_RANDOM = Reason(
    "host_random",
    "{subject}: its forward draws random numbers on the host, which a graph would repeat",
)
WAITS_FOR_GPU = Reason(
    "waits_for_gpu",
    "{subject}: its forward or backward waits for the GPU{raised}, which a graph cannot",
)
CAPTURE_FAILED = Reason("capture_failed", "{subject}: it could not be captured: {error}{raised}")
SINGLE_GRADIENTS = Reason(
    "single_gradients",
    "{subject}: gradients of single parameters are requested, which CUDA graphs cannot give",
)
_SINGLE_GRADIENTS_ASKED = Reason(
    "single_gradients",
    "gradients of single parameters were requested, which CUDA graphs cannot give",
)


def not_captured(module: Any, inputs: Iterable[Any], kind: str) -> NotApplied | None:
    """The reason; None if it is worth trying. `inputs`: where those are; `kind`: the device that
    has graphs."""
    parameters = list(parameters_of(module))
    devices = {tensor.device for tensor in (*parameters, *module.buffers())} | {*inputs}
    if any(device.type != kind for device in devices):
        return NotApplied(NOT_ON_GPU)
    if len(devices) > 1:
        return NotApplied(SEVERAL_GPUS)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return NotApplied(SEVERAL_PROCESSES)
    if is_compiled(module):
        return NotApplied(PROGRAM_COMPILES)
    if is_checkpointed(module):
        return NotApplied(CHECKPOINTED)
    for name, part in module.named_modules():
        if isinstance(part, torch.jit.ScriptModule):
            return NotApplied(TORCHSCRIPT)
        if any(getattr(part, hooks) for hooks in _HOOKS):
            return NotApplied(HOOKS, code=name or "it")
        if isinstance(part, torch.nn.RNNBase):  # trying would advance cuDNN's dropout state
            return NotApplied(RECURRENT, code=name or "it")
    if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in parameters):
        return NotApplied(PARAMETER_HOOKS)
    if any(buffer.requires_grad for buffer in module.buffers()):
        return NotApplied(BUFFER_GRADIENTS)
    return None


_OWN = {"_parameters", "_buffers", "_modules"}
_Marks = dict[tuple[str, str], Any]


def _attribute_marks(module: Any) -> _Marks:
    """A fingerprint of all attributes of a model and its parts."""
    found: _Marks = {}
    for name, part in module.named_modules():
        found |= {(name, key): _mark(v) for key, v in vars(part).items() if key not in _OWN}
        found |= {(name, key): id(buffer) for key, buffer in part._buffers.items()}
    return found


def _changed_attributes(module: Any, before: _Marks) -> list[str]:
    after = _attribute_marks(module)
    keys = sorted(before.keys() | after.keys())
    return [".".join(filter(None, key)) for key in keys if before.get(key) != after.get(key)]


def _mark(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple | dict | set):
        return id(value), len(value)
    return id(value)


def _host_random_states(kind: str) -> list[Any]:
    """States of the generators other than that of the device, whose draws a graph would repeat."""
    states: list[Any] = [random.getstate()]
    if kind != "cpu":
        states.append(torch.get_rng_state().tolist())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states.append((kind, keys.tolist(), *rest))
    return states


def _note_gradient(tensor: Any, into: set[int], place: int) -> Any:
    """The same tensor; once a gradient comes back through it, its place is put into the set.
    Neither a view nor a hook: what is behind those is passed by where the program changes the
    tensor in place, as the Trainer of transformers scales losses."""
    return _function().apply(tensor, into, place) if tensor.requires_grad else tensor


@cache
def _function() -> Any:
    class Noted(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, tensor: Any, into: set[int], place: int) -> Any:
            ctx.into, ctx.place = into, place
            return tensor.detach()

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            ctx.into.add(ctx.place)
            return grad, None, None

    return Noted


_EAGER = 3  # calls of a kind before it is recorded
_MOST = 5  # recordings: a model that changes more often is left alone


class GraphedRoot:
    """One root model."""

    def __init__(self, module: Any, recorder: GraphRecorder, context: FixContext) -> None:
        self.module = module
        self.parts = {id(part) for part in module.modules()}
        self.touched = False
        """Whether an attribute of the model was set since it was last looked at."""
        self._name, self._place = type(module).__qualname__, context.place()
        self._recorder = recorder
        self._context = context
        self._seen: Counter[Any] = Counter()
        self._used: set[int] = set()
        self.graphed: GraphedModel | None = None
        self._key: Any = None
        self._attributes: _Marks = {}
        self._fits = True
        self._recordings = 0
        self._closed = False
        self._recording = False

    def called(self, call: Any, args: Any, kwargs: Any) -> Any:
        """The model's call, by its graphs where they serve."""
        if self._closed or not torch.is_grad_enabled():
            return call(self.module, *args, **kwargs)
        given = flatten_tensors((args, kwargs))
        if given.strange is not None:
            self._close(NotApplied(STRANGE_INPUT, code=given.strange))
            return call(self.module, *args, **kwargs)
        kind = self._recorder.kind
        cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        key = (given.key, cast, self.module.training)
        if self.graphed is None:
            self._seen[key] += 1
            if self._seen[key] <= _EAGER:
                return self._watched(call(self.module, *args, **kwargs))
            self._record(call, given, key)
        found = self._replayed(given, key)
        return call(self.module, *args, **kwargs) if found is None else found[0]

    def picked(self, tensors: Iterable[Any]) -> None:
        """The program wants gradients of these alone. Raises where one is a parameter and graphs
        may have computed the forward already."""
        if self._closed or self._recording:
            return
        own = {id(parameter) for parameter in parameters_of(self.module)}
        if any(id(tensor) in own for tensor in tensors):
            graphed = self.graphed
            self._close(NotApplied(SINGLE_GRADIENTS))
            if graphed is not None:
                raise GraphMisuseError(_SINGLE_GRADIENTS_ASKED)

    def hooked(self, tensor: Any) -> None:
        """A hook is registered on a tensor: one of a parameter would not be called."""
        if not self._closed and any(tensor is one for one in parameters_of(self.module)):
            self._close(NotApplied(PARAMETER_HOOKS))

    def _replayed(self, given: FlatTensors, key: Any) -> Any:
        if self.graphed is None or key != self._key:
            return None
        if self.touched:
            self.touched = False
            names = _changed_attributes(self.module, self._attributes)
            self._fits = not names
            other = [name for name in names if not name.endswith("training")]
            if other:  # the program has changed what forward may depend on: begin anew
                self.graphed, self._fits = None, True
                self._seen.clear()
                if self._recordings == _MOST:
                    self._close(NotApplied(KEEPS_CHANGING, code=other[0]))
        return self.graphed.replay(given.tensors) if self.graphed and self._fits else None

    def _watched(self, result: Any) -> Any:
        """Learn which outputs get gradients from the program, not from each other."""
        taken = flatten_tensors(result)
        if taken.strange is not None:
            self._close(NotApplied(STRANGE_OUTPUT, code=taken.strange))
            return result
        noted = [_note_gradient(one, self._used, place) for place, one in enumerate(taken.tensors)]
        return taken.together(noted)

    def _record(self, call: Any, given: FlatTensors, key: Any) -> None:
        devices = [tensor.device for tensor in given.tensors]
        refused = not_captured(self.module, devices, self._recorder.kind)
        if refused is None and not self._used:
            refused = NotApplied(NO_GRADIENT)
        if refused is not None:
            self._close(refused)
            return
        kind = self._recorder.kind
        before, random = _attribute_marks(self.module), _host_random_states(kind)

        def compute(*args: Any, **kwargs: Any) -> Any:
            return call(self.module, *args, **kwargs)

        state = StateSnapshot(self.module)
        self._recording = True
        try:
            graphed = GraphedModel(compute, self.module, given, self._used, self._recorder)
            drawn = _host_random_states(kind) != random
        except Exception as problem:
            self._close(_failure(problem))
            return
        finally:
            state.restore()
            self._recording = False
        if names := _changed_attributes(self.module, before):
            self._close(NotApplied(CHANGES_ATTRIBUTE, code=names[0]))
            return
        if drawn:
            self._close(NotApplied(HOST_RANDOM))
            return
        self.graphed, self._key, self._attributes = graphed, key, before
        self._recordings += 1
        shapes = " and ".join("×".join(map(str, t.shape)) or "a number" for t in given.tensors)
        self._context.applied(Applied(GRAPH, self._name, self._place, detail=shapes))

    def _close(self, refused: NotApplied) -> None:
        self._closed, self.graphed = True, None
        record = replace(refused, target=MODEL, object=self._name, place=self._place)
        self._context.not_applied(record)


def _failure(problem: BaseException) -> NotApplied:
    """Why recording failed. Ending a capture that failed raises once more."""
    while problem.__context__ is not None:
        problem = problem.__context__
    if isinstance(problem, GraphMisuseError):
        return NotApplied(problem.reason)
    raised, _ = raise_location(problem.__traceback__)
    text = str(problem)
    if "synchronizing CUDA operation" in text:
        return NotApplied(WAITS_FOR_GPU, raised=raised)
    first = next(filter(None, map(str.strip, text.splitlines())), type(problem).__name__)
    return NotApplied(CAPTURE_FAILED, raised=raised, error=first[:160])
