"""Root models and their graphs: when one is recorded, used, or passed by."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from stepscope.fixes.base import Hands
from stepscope.fixes.graph_checks import unfit_for_graph
from stepscope.fixes.graph_inputs import Taken, take_apart
from stepscope.fixes.graph_model import PICKED, GraphedModel
from stepscope.fixes.graph_noted import noted
from stepscope.fixes.graph_record import Recorder
from stepscope.fixes.graph_state import attributes, changed, host_randomness, kept
from stepscope.fixes.places import raised_at

_EAGER = 3  # calls of a kind before it is recorded
_MOST = 5  # recordings: a model that changes more often is left alone


class Root:
    """One root model."""

    def __init__(self, module: Any, recorder: Recorder, hands: Hands) -> None:
        self.module = module
        self.parts = {id(part) for part in module.modules()}
        self.touched = False
        """Whether an attribute of the model was set since it was last looked at."""
        self._name = f"{type(module).__qualname__}, called at {hands.place()}"
        self._recorder = recorder
        self._hands = hands
        self._seen: Counter[Any] = Counter()
        self._used: set[int] = set()
        self._graphed: GraphedModel | None = None
        self._key: Any = None
        self._attributes: dict[tuple[str, str], Any] = {}
        self._fits = True
        self._recordings = 0
        self._closed = False
        self._recording = False

    @property
    def recorded(self) -> bool:
        """Whether there are graphs."""
        return self._graphed is not None

    def called(self, call: Any, args: Any, kwargs: Any) -> Any:
        """The model's call, by its graphs where they serve."""
        import torch

        if self._closed or not torch.is_grad_enabled():
            return call(self.module, *args, **kwargs)
        given = take_apart((args, kwargs))
        if given.strange is not None:
            self._close(f"it is called with a {given.strange}, which a graph cannot take")
            return call(self.module, *args, **kwargs)
        key = (given.key, _arithmetic(self._recorder.kind), self.module.training)
        if self._graphed is None:
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
        own = {id(parameter) for parameter in self.module.parameters()}
        if any(id(tensor) in own for tensor in tensors):
            graphed = self._graphed
            self._close(PICKED)
            if graphed is not None:
                raise RuntimeError(PICKED)

    def hooked(self, tensor: Any) -> None:
        """A hook is registered on a tensor: one of a parameter would not be called."""
        if not self._closed and any(tensor is one for one in self.module.parameters()):
            self._close("its parameters have hooks, which a graph would not call")

    def _replayed(self, given: Taken, key: Any) -> Any:
        if self._graphed is None or key != self._key:
            return None
        if self.touched:
            self.touched = False
            names = changed(self._attributes, attributes(self.module))
            self._fits = not names
            other = [name for name in names if not name.endswith("training")]
            if other:
                self._forget(other[0])
        return self._graphed.replay(given.tensors) if self._graphed and self._fits else None

    def _forget(self, name: str) -> None:
        """The program has changed an attribute that forward may depend on: begin anew."""
        self._graphed, self._fits = None, True
        self._seen.clear()
        if self._recordings == _MOST:
            self._close(f"the program keeps changing {name}, which a graph would freeze")

    def _watched(self, result: Any) -> Any:
        """Learn which outputs get gradients from the program, not from each other."""
        taken = take_apart(result)
        if taken.strange is not None:
            self._close(f"it returns a {taken.strange}, which a graph cannot")
            return result
        return taken.together(
            [noted(tensor, self._used, place) for place, tensor in enumerate(taken.tensors)]
        )

    def _record(self, call: Any, given: Taken, key: Any) -> None:
        reason = unfit_for_graph(self.module, given.tensors, self._recorder.kind)
        if reason is None and not self._used:
            reason = "no gradient comes back through its outputs"
        if reason is not None:
            self._close(reason)
            return
        kind = self._recorder.kind
        before, random = attributes(self.module), host_randomness(kind)

        def compute(*args: Any, **kwargs: Any) -> Any:
            return call(self.module, *args, **kwargs)

        self._recording = True
        try:
            with kept(self.module):
                graphed = GraphedModel(compute, self.module, given, self._used, self._recorder)
                drawn = host_randomness(kind) != random
        except Exception as problem:
            self._close(_why(problem))
            return
        finally:
            self._recording = False
        reason = _side_effect(changed(before, attributes(self.module)), drawn)
        if reason is not None:
            self._close(reason)
            return
        self._graphed, self._key, self._attributes = graphed, key, before
        self._recordings += 1
        shapes = " and ".join("×".join(map(str, t.shape)) or "a number" for t in given.tensors)
        self._hands.applied(f"forward and backward of {self._name}, for inputs of {shapes}")

    def _close(self, reason: str) -> None:
        self._closed, self._graphed = True, None
        self._hands.unfit(f"{self._name}: {reason}")


def _arithmetic(kind: str) -> tuple[Any, ...]:
    """What the operations of a forward depend on besides their inputs."""
    import torch

    on = torch.is_autocast_enabled(kind)
    return on, torch.get_autocast_dtype(kind) if on else None


def _side_effect(names: list[str], drawn: bool) -> str | None:
    """What a forward does on the host that replaying a graph would not."""
    if names:
        return f"its forward changes {names[0]}, which a graph would not"
    if drawn:
        return "its forward draws random numbers on the host, which a graph would repeat"
    return None


def _why(problem: BaseException) -> str:
    """Why recording failed, in one line. Ending a capture that failed raises once more."""
    while problem.__context__ is not None:
        problem = problem.__context__
    where, _ = raised_at(problem.__traceback__)
    at = f" (at {where})" if where else ""
    text = str(problem)
    if "synchronizing CUDA operation" in text:
        return f"its forward or backward waits for the GPU{at}, which a graph cannot"
    first = next(filter(None, map(str.strip, text.splitlines())), type(problem).__name__)
    return f"it could not be captured: {first[:160]}{at}"
