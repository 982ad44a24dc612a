"""The fix that replays forward, backward and the optimizer's step as CUDA graphs, and the graphs of
optimizer updates."""

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from stepscope.analyze.replay.known import Changes, KnownProgram
from stepscope.fixes.applicability import COMPILED, NOT_TRAINING, ObservedProgram, unsuitable
from stepscope.fixes.base import (
    Fix,
    FixContext,
    FixKind,
    LiveModel,
    LiveProgram,
    SourceEdit,
    refused_by_all,
)
from stepscope.fixes.launching.cuda_graph.model import (
    GraphMisuseError,
    GraphRecorder,
    is_strange,
)
from stepscope.fixes.launching.cuda_graph.root_model import (
    STRANGE_INPUT,
    GraphedRoot,
    not_captured,
)
from stepscope.fixes.lazy import changes, torch
from stepscope.record.fix import MODEL, Applied, Broke, NotApplied, Reason, Target
from stepscope.record.trial import Rejection

_STEADY = 3  # calls with the same key before it is recorded
_MOST = 5  # recordings: beyond this the values change too often
_PATIENCE = 30  # calls without a recording before it is reported
GRAPHED_STEP = Target("graphed_step", "the step of {object}{at}")
CAPTURE_LEFT_OPEN = Reason("capture_left_open", "a failed capture could not be undone")
GRAPH_DERIVATIVES = Reason(
    "graph_derivatives", "a CUDA graph cannot compute gradients of gradients"
)
STEP_NOT_CAPTURED = Reason("step_not_captured", "the step of {object} is not captured")
STEP_NEEDS_FUSED = Reason(
    "step_needs_fused",
    "the step of {object} counts on the CPU and is not captured: add fused_optimizer",
)
STEP_CAPTURE_FAILED = Reason(
    "step_capture_failed", "the step of {object} could not be captured: {error}"
)
STEP_CHANGES = Reason(
    "step_changes",
    "the step of {object} is not captured: its learning rate keeps changing, or gradients move",
)


@dataclass(slots=True)
class _Slot:
    """The updates of one group of parameters."""

    calls: int = 0
    same: int = 0
    last: Any = None
    key: Any = None
    graph: Any = None
    recordings: int = 0
    closed: bool = False


class _GraphedUpdates:
    """Handlers around `torch.optim.sgd.sgd` and the like, which get all tensors and numbers."""

    def __init__(self, recorder: GraphRecorder, context: FixContext) -> None:
        self._recorder = recorder
        self._context = context
        self._slots: dict[int, _Slot] = {}
        self._recording = False  # one update function may call another

    def update(self, name: str, call: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        """Wraps the function that updates parameters of the named optimizer."""
        slot = self._slots.setdefault(id(params[0]), _Slot()) if params else _Slot(closed=True)
        if self._recording or slot.closed or not self._fits(name, slot, params, kwargs):
            return call(params, *args, **kwargs)
        numbers = tuple((key, _number(value)) for key, value in kwargs.items())
        key = (_places(params), *map(_places, args), numbers)
        if slot.graph is not None and slot.key == key:
            slot.graph.replay()
            return None
        slot.calls += 1
        slot.same = slot.same + 1 if slot.last == key else 1
        slot.last = key
        if slot.same >= _STEADY and slot.recordings < _MOST:
            return self._recorded(name, slot, key, lambda: call(params, *args, **kwargs))
        if slot.calls == _PATIENCE and (slot.graph is None or slot.recordings == _MOST):
            self._context.not_applied(NotApplied(STEP_CHANGES, object=name))
        return call(params, *args, **kwargs)

    def _fits(self, name: str, slot: _Slot, params: Any, kwargs: dict[str, Any]) -> bool:
        if params[0].device.type != self._recorder.kind or kwargs.get("has_sparse_grad"):
            slot.closed = True
        elif name != "SGD" and not kwargs.get("fused"):
            slot.closed = True
            self._context.not_applied(NotApplied(STEP_NEEDS_FUSED, object=name))
        return not slot.closed

    def _recorded(self, name: str, slot: _Slot, key: Any, function: Any) -> Any:
        slot.graph = None
        self._recording = True
        try:
            slot.graph, _ = self._recorder.record(function)
        except Exception as problem:
            slot.closed = True
            failed = NotApplied(STEP_CAPTURE_FAILED, object=name, error=str(problem))
            self._context.not_applied(failed)
            return function()
        finally:
            self._recording = False
        slot.key = key
        slot.recordings += 1
        slot.graph.replay()
        self._context.applied(Applied(GRAPHED_STEP, name, self._context.place()))
        return None


def _places(value: Any) -> Any:
    """Addresses of a list's tensors; other values unchanged. Computed every step."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if not isinstance(value, list | tuple):
        return value
    try:
        return tuple(map(torch.Tensor.data_ptr, value))
    except TypeError:  # there are others among them
        return tuple(map(_places, value))


def _number(value: Any) -> Any:
    """A number's value, also if in a host tensor: a graph freezes both."""
    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.tolist()
    return _places(value)


_FAILURES = {
    "once_differentiable": GRAPH_DERIVATIVES,
    "outside graph capture|stream is capturing": CAPTURE_LEFT_OPEN,
}
_FUNCTIONS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW"}
"""The functions that update parameters, each in the module of its name, and their optimizers."""


class CudaGraph(Fix):
    """Each root model gets graphs for the first kind of inputs it is trained with. Other shapes,
    evaluation, and a second call before backward run as usual. The optimizer's step is replayed as
    long as its learning rate and tensor addresses stay the same."""

    name = "cuda_graph"
    group = "launch"
    title = "replay forward, backward and the optimizer's step as CUDA graphs"
    redraws_model = True
    edited_by_call = True
    kind = FixKind.NUMERIC
    effort = "many lines"
    needs = "cuda"
    bad_with = ("compile", "checkpointing")
    missing = "no model was trained for long enough with inputs of one shape"
    failures = _FAILURES
    slow_start = True

    def applies(self, program: ObservedProgram) -> Rejection | None:
        if not program.trains:
            return unsuitable(NOT_TRAINING)
        return unsuitable(COMPILED) if program.compiles else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """The host's part of forward, backward and optimizer becomes one launch."""
        return [changes.drop_launch_cost()] if known.device == "cuda" else None

    def check(self, live: LiveProgram) -> NotApplied | None:
        return refused_by_all(_refused(one) for one in live.models)

    def install(self, value: Any, context: FixContext) -> None:
        roots: dict[int, GraphedRoot] = {}
        watching = False

        def picked(inputs: Any) -> list[Any]:
            tensors = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
            for root in roots.values():
                root.picked(tensors)
            return tensors

        def backward(call: Any, *args: Any, inputs: Any = None, **kwargs: Any) -> Any:
            return call(*args, inputs=None if inputs is None else picked(inputs), **kwargs)

        def grad(call: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            return call(outputs, picked(inputs), *args, **kwargs)

        def hooked(call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
            for root in roots.values():
                root.hooked(tensor)
            return call(tensor, *args, **kwargs)

        def called(call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal watching
            root = roots.get(id(module))
            if root is None:
                root = roots[id(module)] = GraphedRoot(module, GraphRecorder(), context)
            result = root.called(call, args, kwargs)
            if root.graphed is not None and not watching:
                watching = True
                context.seams.around(torch.nn.Module, "__setattr__", assigned)
            return result

        def assigned(call: Any, module: Any, name: str, value: Any) -> None:
            call(module, name, value)
            for root in roots.values():
                if id(module) in root.parts:
                    root.touched = True

        def made(optimizer: Any, defaults: dict[str, Any]) -> None:
            names = {cls.__name__ for cls in type(optimizer).__mro__}
            if names.isdisjoint(_FUNCTIONS.values()):
                name = type(optimizer).__name__
                context.not_applied(NotApplied(STEP_NOT_CAPTURED, object=name))

        context.seams.root_called(called)
        context.seams.backward(backward)
        context.seams.around(torch.autograd, "grad", grad)
        for name in ("register_hook", "register_post_accumulate_grad_hook"):
            context.seams.around(torch.Tensor, name, hooked)
        context.seams.optimizer_made(made)
        updates = _GraphedUpdates(GraphRecorder(), context)
        for name, of in _FUNCTIONS.items():
            module = import_module(f"torch.optim.{name}")
            context.seams.around(module, name, partial(updates.update, of))

    def explain(self, error: BaseException, line: str) -> Broke | None:
        if isinstance(error, GraphMisuseError):
            return Broke(error.reason)
        return super().explain(error, line)

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "capture the model by torch.cuda.make_graphed_callables(model, sample_args) before "
            "training, with static shapes and without waiting for the GPU in forward"
        )


def _refused(one: LiveModel) -> NotApplied | None:
    strange = [kind for kind, _, layout in one.inputs if is_strange(kind, layout)]
    refused = NotApplied(STRANGE_INPUT, code=strange[0].__qualname__) if strange else None
    devices = [device for _, device, _ in one.inputs if device is not None]
    refused = refused or not_captured(one.module, devices, GraphRecorder.kind)
    return refused and replace(refused, target=MODEL, object=one.name)


FIX = CudaGraph()
