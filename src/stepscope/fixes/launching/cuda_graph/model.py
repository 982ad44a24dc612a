"""A model's forward and backward as two CUDA graphs behind one autograd function: recording,
inputs, and parameters to record with.

Parameters get their gradients from it directly: passing them through autograd one by one took over
a third of the host's time in a replayed step. Recording uses other tensors in the parameters'
memory: autograd remembers on which stream a parameter first took part in a graph, and as long as
the program holds an earlier loss that is the default stream, where a recording would fail.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import ref

from stepscope.fixes.inspect.models import parameters_of
from stepscope.fixes.lazy import torch
from stepscope.record.fix import Broke, Reason

HIDDEN_PARAMETERS = Reason(
    "hidden_parameters", "{subject}: its forward uses parameters kept outside its modules"
)
BACKWARD_TWICE = Reason(
    "backward_twice",
    "a model's outputs were used in backward twice, or after the model had been called again",
)
UNUSED_OUTPUT = Reason(
    "unused_output", "an output without a gradient in the first steps now has one"
)


class GraphRecorder:
    """Runs functions before recording, records them, and cleans up after failures."""

    kind = "cuda"

    def __init__(self) -> None:
        self._pool: Any = None

    def try_out(self, function: Callable[[], Any]) -> None:
        """Run a function on a separate stream, first freely, then so that waiting raises."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        mode = torch.cuda.get_sync_debug_mode()
        try:
            with torch.cuda.stream(stream):
                function()
                with warnings.catch_warnings(action="ignore"):  # it says that it is new
                    torch.cuda.set_sync_debug_mode("error")
                function()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
            torch.cuda.current_stream().wait_stream(stream)
            stream.synchronize()

    def record(self, function: Callable[[], Any]) -> tuple[Any, Any]:
        """A graph of a function's device work, and its result, which is not computed yet. Only this
        thread is captured: a loader's threads may keep pinning memory."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        before = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = function()
        except Exception:
            torch.cuda.set_stream(before)
            _end_capture()
            raise
        return graph, result


def _end_capture() -> None:
    """A failed capture leaves the random generator in capture mode: end it."""
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            torch.zeros(1, device="cuda")
    except Exception:
        torch.cuda.set_stream(before)


_PLAIN = (type(None), bool, int, float, str)


@dataclass(frozen=True, slots=True)
class FlatTensors:
    """A flattened nest of lists, tuples and dicts."""

    tensors: list[Any]
    key: tuple[Any, ...]
    """Everything but the tensors' contents: nests with equal keys can use the same graph."""
    strange: str | None
    """The type of something a graph can neither take nor freeze; None if there is none."""
    _spec: Any
    _plain: list[Any]

    def together(self, tensors: list[Any]) -> Any:
        """Rebuild the nest with these tensors."""
        given = iter(tensors)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self._plain]
        return torch.utils._pytree.tree_unflatten(leaves, self._spec)


_TENSOR = object()


def flatten_tensors(nest: Any) -> FlatTensors:
    leaves, spec = torch.utils._pytree.tree_flatten(nest)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    plain = [_TENSOR if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    others = [leaf for leaf in plain if leaf is not _TENSOR]
    odd = [leaf for leaf in others if is_strange(type(leaf), None)]
    odd += [tensor for tensor in tensors if is_strange(type(tensor), tensor.layout)]
    key = (
        str(spec),
        tuple(_described(tensor) for tensor in tensors),
        tuple((type(leaf), leaf) for leaf in others if not is_strange(type(leaf), None)),
    )
    return FlatTensors(tensors, key, type(odd[0]).__qualname__ if odd else None, spec, plain)


def is_strange(kind: type, layout: Any) -> bool:
    """Whether a graph can neither take nor freeze something of a class; `layout`: of a tensor."""
    if layout is not None:
        return bool(layout != torch.strided)
    return not issubclass(kind, (*_PLAIN, torch.dtype, torch.device))


def _described(tensor: Any) -> tuple[Any, ...]:
    strides = tensor.stride() if tensor.layout == torch.strided else None
    return tensor.shape, strides, tensor.dtype, tensor.device, tensor.requires_grad


@contextmanager
def _using_stand_ins(module: Any, others: dict[str, Any]) -> Iterator[None]:
    """Make a module compute with these instead of its parameters, including shared ones."""
    reparametrized = torch.nn.utils.stateless._reparametrize_module
    with reparametrized(module, others, tie_weights=True):
        lists = [part for part in module.modules() if "_flat_weights" in vars(part)]
        before = [part._flat_weights for part in lists]
        for part in lists:  # recurrent layers keep a list of their own
            part._flat_weights = [getattr(part, name) for name in part._flat_weights_names]
        try:
            yield
        finally:
            for part, weights in zip(lists, before, strict=True):
                part._flat_weights = weights


class GraphMisuseError(RuntimeError):
    """The program does something that a graph cannot follow."""

    def __init__(self, reason: Reason) -> None:
        from stepscope.record.fix_words import sentence

        super().__init__(sentence(Broke(reason)))
        self.reason = reason


class _Call:
    """One replay of the forward graph; alive as long as backward may still come."""

    done = False


class GraphedModel:
    """The graphs of one model for inputs of one kind. Raises what recording raises. `call(*args,
    **kwargs)` computes the model, `used` are the places of outputs that get gradients."""

    def __init__(
        self,
        call: Callable[..., Any],
        module: Any,
        given: FlatTensors,
        used: set[int],
        recorder: GraphRecorder,
    ) -> None:
        self._call = call
        self._inputs = [_static(tensor) for tensor in given.tensors]
        self._given = given.together(self._inputs)
        self._module = module
        self._stand_ins = {  # by their first name, in the parameters' memory
            name: torch.nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
            for name, parameter in module.named_parameters()
        }
        self._parameters = [p for p in parameters_of(module) if p.requires_grad]
        self._leaves = [s for s in self._stand_ins.values() if s.requires_grad]
        self._places = [(p, p.data_ptr(), p.requires_grad) for p in parameters_of(module)]
        self._used = sorted(used)
        device = (*given.tensors, *self._parameters)[0].device
        self._anchor = torch.zeros((), device=device, requires_grad=True)
        self._last: ref[_Call] | None = None
        self._live: list[Any] = []  # outputs backward is computed from
        self._grads_in: list[Any] = []
        self._aside: list[Any] = []
        self.result: FlatTensors | None = None
        recorder.try_out(lambda: (self._forward(), self._backward()))
        self._check_stand_ins()
        self._forward_graph, self._outputs = recorder.record(self._forward)
        self._backward_graph, self._grads_out = recorder.record(self._backward)
        self._function = self._as_function()

    def replay(self, tensors: list[Any]) -> Any:
        """The model's outputs for these inputs; None if the graphs cannot serve this call."""
        last = self._last() if self._last is not None else None
        if last is not None and not last.done:
            return None  # its activations are still needed
        for parameter, place, wanted in self._places:
            if parameter.data_ptr() != place or parameter.requires_grad is not wanted:
                return None
        now = _Call()
        self._last = ref(now)
        outputs = self._function.apply(now, self._anchor, *tensors)
        assert self.result is not None
        return (self.result.together(list(outputs)),)

    def _forward(self) -> list[Any]:
        args, kwargs = self._given
        self._live, self.result = [], None  # an earlier graph would keep the stream it ran on
        torch.clear_autocast_cache()  # casts of weights belong into the graph
        with _using_stand_ins(self._module, self._stand_ins):
            self.result = flatten_tensors(self._call(*args, **kwargs))
        torch.clear_autocast_cache()
        self._live = self.result.tensors
        return self._live

    def _backward(self) -> list[Any]:
        outputs = [self._live[place] for place in self._used]
        if not self._grads_in:
            self._grads_in = [torch.zeros_like(output) for output in outputs]
        wanted = [tensor for tensor in self._inputs if tensor.requires_grad]
        grads = torch.autograd.grad(
            outputs, [*wanted, *self._leaves], self._grads_in, allow_unused=True
        )
        return [*grads[: len(wanted)], *self._put_aside(grads[len(wanted) :])]

    def _put_aside(self, grads: Sequence[Any]) -> list[Any]:
        """Copies of the gradients where no forward replay writes. Otherwise they would be in memory
        freed by activations, and the next forward may run before the program has used them."""
        if not self._aside:  # in the trial: memory of its own, not of a graph
            self._aside = [
                grad if grad is None else torch.empty_like(parameter)
                for parameter, grad in zip(self._parameters, grads, strict=True)
            ]
        pairs = [(a, g) for a, g in zip(self._aside, grads, strict=True) if g is not None]
        if pairs:
            torch._foreach_copy_([aside for aside, _ in pairs], [grad for _, grad in pairs])
        return self._aside

    def _check_stand_ins(self) -> None:
        """Raise if the model computes with parameters that have no stand-in."""
        self._forward()
        outputs = [self._live[place] for place in self._used]
        reached = torch.autograd.grad(outputs, self._parameters, self._grads_in, allow_unused=True)
        if any(grad is not None for grad in reached):
            raise GraphMisuseError(HIDDEN_PARAMETERS)

    def _as_function(self) -> Any:
        graphed = self

        class Graphed(torch.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, now: _Call, anchor: Any, *tensors: Any) -> Any:
                ctx.now = now
                ctx.set_materialize_grads(False)
                for static, tensor in zip(graphed._inputs, tensors, strict=True):
                    static.detach().copy_(tensor)
                graphed._forward_graph.replay()
                outputs = tuple(output.detach().clone() for output in graphed._outputs)
                pairs = zip(outputs, graphed._outputs, strict=True)
                ctx.mark_non_differentiable(*(one for one, of in pairs if not of.requires_grad))
                return outputs

            @staticmethod
            @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
            def backward(ctx: Any, *grads: Any) -> Any:
                return None, None, *graphed._run_backward(ctx.now, grads)

        return Graphed

    def _run_backward(self, now: _Call, grads: Any) -> list[Any]:
        if now.done or self._last is None or self._last() is not now:
            raise GraphMisuseError(BACKWARD_TWICE)
        if any(grad is not None and i not in self._used for i, grad in enumerate(grads)):
            raise GraphMisuseError(UNUSED_OUTPUT)
        now.done = True
        for static, place in zip(self._grads_in, self._used, strict=True):
            if grads[place] is None:
                static.zero_()
            else:
                static.copy_(grads[place])
        inputs = sum(tensor.requires_grad for tensor in self._inputs)
        self._part_from_gradients(self._grads_out[inputs:])
        self._backward_graph.replay()
        self._hand_out(self._grads_out[inputs:])
        found = iter(self._grads_out[:inputs])
        own = [next(found) if tensor.requires_grad else None for tensor in self._inputs]
        return [grad if grad is None else grad.clone() for grad in own]

    def _hand_out(self, grads: list[Any]) -> None:
        """Like autograd: set a parameter's gradient if it has none, else add to it."""
        sums, parts = [], []
        for parameter, grad in zip(self._parameters, grads, strict=True):
            if grad is None:
                continue
            if parameter.grad is None:
                parameter.grad = grad.detach()
            else:
                sums.append(parameter.grad)
                parts.append(grad)
        if sums:
            torch._foreach_add_(sums, parts)

    def _part_from_gradients(self, grads: list[Any]) -> None:
        """Copy gradients still in the graph's memory elsewhere: the next replay would overwrite
        them."""
        for parameter, grad in zip(self._parameters, grads, strict=True):
            kept = parameter.grad
            if kept is not None and grad is not None and kept.data_ptr() == grad.data_ptr():
                parameter.grad = kept.clone()


def _static(tensor: Any) -> Any:
    copy = torch.empty_like(tensor, requires_grad=False).copy_(tensor.detach())
    return copy.requires_grad_(tensor.requires_grad)
