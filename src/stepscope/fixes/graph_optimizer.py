"""An optimizer's update as a graph: what it computes once gradients and state are collected."""

from dataclasses import dataclass
from typing import Any

from stepscope.fixes.base import Hands
from stepscope.fixes.graph_record import Recorder

_STEADY = 3  # calls with the same key before it is recorded
_MOST = 5  # recordings: after that the values change too often
_PATIENCE = 30  # calls without one after which that is said


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


class Updates:
    """Handlers around `torch.optim.sgd.sgd` and the like, which get all tensors and numbers."""

    def __init__(self, recorder: Recorder, hands: Hands) -> None:
        self._recorder = recorder
        self._hands = hands
        self._slots: dict[int, _Slot] = {}
        self._recording = False  # one update function may call another

    def handler(self, name: str) -> Any:
        """For the function that updates parameters of the optimizer of that name."""

        def update(call: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
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
            if slot.same < _STEADY or slot.recordings == _MOST:
                self._complain(name, slot)
                return call(params, *args, **kwargs)
            return self._recorded(name, slot, key, lambda: call(params, *args, **kwargs))

        return update

    def _fits(self, name: str, slot: _Slot, params: Any, kwargs: dict[str, Any]) -> bool:
        if params[0].device.type != self._recorder.kind or kwargs.get("has_sparse_grad"):
            slot.closed = True
        elif name != "SGD" and not kwargs.get("fused"):
            slot.closed = True
            self._hands.unfit(
                f"the step of {name} counts on the CPU and is not captured: add fused_optimizer"
            )
        return not slot.closed

    def _recorded(self, name: str, slot: _Slot, key: Any, function: Any) -> Any:
        slot.graph = None
        self._recording = True
        try:
            slot.graph, _ = self._recorder.record(function)
        except Exception as problem:
            slot.closed = True
            self._hands.unfit(f"the step of {name} could not be captured: {problem}")
            return function()
        finally:
            self._recording = False
        slot.key = key
        slot.recordings += 1
        slot.graph.replay()
        self._hands.applied(f"the step of {name} at {self._hands.place()}")
        return None

    def _complain(self, name: str, slot: _Slot) -> None:
        if slot.calls == _PATIENCE and (slot.graph is None or slot.recordings == _MOST):
            self._hands.unfit(
                f"the step of {name} is not captured: its learning rate changes all the time, or "
                "gradients are not where they were"
            )


def _places(value: Any) -> Any:
    """Where the tensors of a list are; other things as they are. Asked for in every step."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    if not isinstance(value, list | tuple):
        return value
    try:
        return tuple(map(torch.Tensor.data_ptr, value))
    except TypeError:  # there are others among them
        return tuple(map(_places, value))


def _number(value: Any) -> Any:
    """A number by its value, also one in a tensor on the host: a graph freezes both."""
    import torch

    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
        return value.tolist()
    return _places(value)
