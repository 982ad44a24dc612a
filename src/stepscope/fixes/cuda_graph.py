"""Replay forward, backward and the optimizer's step as CUDA graphs."""

from importlib import import_module
from typing import Any

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.graph_model import PICKED, TWICE, UNUSED
from stepscope.fixes.graph_optimizer import Updates
from stepscope.fixes.graph_record import Recorder
from stepscope.fixes.graph_roots import Root

_FUNCTIONS = (("sgd", "SGD"), ("adam", "Adam"), ("adamw", "AdamW"))


class CudaGraph(Fix):
    """Each root model gets graphs for the first kind of inputs it is trained with.

    Other shapes, evaluation, and a second call before backward run as usual. The optimizer's step
    is replayed while its learning rate and the places of its tensors stay what they were.
    """

    name = "cuda_graph"
    group = "launch"
    title = "replay forward, backward and the optimizer's step as CUDA graphs"
    kind = Kind.NUMERIC
    effort = "many lines"
    needs = "cuda"
    bad_with = ("compile", "checkpointing")
    missing = "no model was trained for long enough with inputs of one shape"

    def install(self, value: Any, hands: Hands) -> None:
        if not Recorder.available():
            hands.unfit("there is no CUDA device here")
        else:
            _take_hold(hands)

    def explain(self, error: BaseException, line: str) -> str | None:
        text = str(error)
        if text in (PICKED, TWICE, UNUSED):
            return text
        if "once_differentiable" in text:
            return "gradients of gradients cannot be computed through a CUDA graph"
        if "outside graph capture" in text or "stream is capturing" in text:
            return "a capture that failed could not be undone"
        return None

    def edit(self, value: Any, line: str) -> Edit:
        return Edit(
            "capture the model by torch.cuda.make_graphed_callables(model, sample_args) before "
            "training, with static shapes and without waiting for the GPU in forward"
        )


def _take_hold(hands: Hands) -> None:
    import torch

    roots: dict[int, Root] = {}
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
            root = roots[id(module)] = Root(module, Recorder(), hands)
        result = root.called(call, args, kwargs)
        if root.recorded and not watching:
            watching = True
            hands.seams.around(torch.nn.Module, "__setattr__", assigned)
        return result

    def assigned(call: Any, module: Any, name: str, value: Any) -> None:
        call(module, name, value)
        for root in roots.values():
            if id(module) in root.parts:
                root.touched = True

    def made(optimizer: Any, defaults: dict[str, Any]) -> None:
        names = {cls.__name__ for cls in type(optimizer).__mro__}
        if not names & {name for _, name in _FUNCTIONS}:
            hands.unfit(f"the step of {type(optimizer).__name__} is not captured")

    hands.seams.root_called(called)
    hands.seams.backward(backward)
    hands.seams.around(torch.autograd, "grad", grad)
    for name in ("register_hook", "register_post_accumulate_grad_hook"):
        hands.seams.around(torch.Tensor, name, hooked)
    hands.seams.optimizer_made(made)
    updates = Updates(Recorder(), hands)
    for module, name in _FUNCTIONS:
        hands.seams.around(import_module(f"torch.optim.{module}"), module, updates.handler(name))


FIX = CudaGraph()
