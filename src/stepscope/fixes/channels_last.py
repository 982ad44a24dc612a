"""Convolutions with channels as the fastest dimension, the order tensor cores want."""

import os
import re
from typing import Any
from weakref import WeakSet

from stepscope.fixes.base import Edit, Fix, Hands, Kind
from stepscope.fixes.layout_nested import changed
from stepscope.fixes.layout_trial import Before
from stepscope.fixes.layout_weights import Weights
from stepscope.fixes.places import raised_at

_VIEW = re.compile(r"[\w.\[\]]*\.view(?=\()")
_TRACED = re.compile(r'File "(.+)", line (\d+), in .*\n\s*(.+)')
_FAILURES = ("view size is not compatible", "Cannot view a tensor with shape")


class ChannelsLast(Fix):
    """Weights are rearranged in place, inputs on their way in, outputs on their way out."""

    name = "channels_last"
    group = "arithmetic"
    title = "convolutions in channels-last memory format"
    kind = Kind.NUMERIC
    effort = "two lines"
    missing = "no model was called"
    _layout: "_Layout | None" = None

    def install(self, value: Any, hands: Hands) -> None:
        from torch.optim import Optimizer

        layout = self._layout = _Layout(hands)
        hands.seams.root_found(layout.found)
        hands.seams.root_called(layout.called)
        hands.seams.optimizer_made(lambda optimizer, _: layout.optimizers.add(optimizer))
        hands.seams.around(Optimizer, "load_state_dict", layout.loaded)

    def explain(self, error: BaseException, line: str) -> str | None:
        if not _is_view_error(error) or self._layout is None or not self._layout.models:
            return None
        return f"`{_view_in(line)}` needs contiguous memory; use `reshape`"

    def edit(self, value: Any, line: str) -> Edit:
        return Edit(
            "put these after the model is made, and pass inputs through "
            "x.to(memory_format=torch.channels_last)",
            before=("model = model.to(memory_format=torch.channels_last)",),
        )


class _Layout:
    """Which models are in the other format."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands
        self.models: dict[int, Weights] = {}
        self._tried: set[tuple[int, bool, bool]] = set()
        self.optimizers: WeakSet[Any] = WeakSet()

    def found(self, module: Any) -> None:
        """Rearrange a model's weights before its first call."""
        name = type(module).__qualname__
        weights = Weights(module)
        if not weights.dims:
            self._hands.unfit(f"{name} has no 2d or 3d convolutions")
            return
        weights.channels_last()
        self.models[id(module)] = weights
        self._arrange_states(weights)

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """A call with rearranged inputs. The first of a kind can be taken back if it fails."""
        import torch

        weights = self.models.get(id(module))
        if weights is None:
            return call(module, *args, **kwargs)
        mode = (id(module), module.training, torch.is_grad_enabled())
        before = None
        if mode not in self._tried and not _capturing():
            before = Before(module)
        given, named = args, kwargs
        if module._compiled_call_impl is None:  # compiled code rearranges them as it reads them
            given, named = _inward(args, weights.dims), _inward(kwargs, weights.dims)
        try:
            result = call(module, *given, **named)
        except RuntimeError as error:
            if before is None or not _is_view_error(error):
                raise
            self._give_up(module, weights, error)
            before.restore()
        else:
            if before is not None:
                self._tried.add(mode)
                self._hands.applied(f"{type(module).__qualname__}, called at {self._hands.place()}")
            return changed(result, _outward)
        return call(module, *args, **kwargs)

    def loaded(self, call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Loaded averages come in the format they were saved in."""
        result = call(optimizer, *args, **kwargs)
        for weights in self.models.values():
            weights.arrange_state(optimizer)
        return result

    def _give_up(self, module: Any, weights: Weights, error: BaseException) -> None:
        import torch

        where, line = _raised_at(error)
        del self.models[id(module)]
        weights.contiguous()
        torch.clear_autocast_cache()  # it may keep the rearranged weights in half precision
        self._arrange_states(weights)
        self._hands.unfit(
            f"`{_view_in(line)}` at {where} needs contiguous memory; use `reshape`: "
            f"{type(module).__qualname__} goes on without"
        )

    def _arrange_states(self, weights: Weights) -> None:
        for optimizer in self.optimizers:
            weights.arrange_state(optimizer)


def _inward(values: Any, dims: set[int]) -> Any:
    """What a model is given, with images and volumes rearranged."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}

    def rearranged(tensor: Any) -> Any:
        if tensor.dim() in dims and tensor.is_floating_point() and not tensor.is_sparse:
            return tensor.contiguous(memory_format=formats[tensor.dim()])
        return tensor

    return changed(values, rearranged)


def _outward(tensor: Any) -> Any:
    """What a model returns, as the program knows it: it may call `view` on it."""
    if tensor.dim() in (4, 5) and not tensor.is_sparse and not tensor.is_contiguous():
        import torch

        form = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
        if tensor.is_contiguous(memory_format=form):
            return tensor.contiguous()
    return tensor


def _capturing() -> bool:
    import torch

    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def _raised_at(error: BaseException) -> tuple[str, str]:
    """The user's place and line; an error of Dynamo's has them in its text."""
    where, line = raised_at(error.__traceback__)
    traced = _TRACED.findall(str(error))
    if traced and ".view" not in line:
        file, number, line = traced[-1]
        where = f"{os.path.basename(file)}:{number}"
    return where, line


def _is_view_error(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _FAILURES)


def _view_in(line: str) -> str:
    """The `x.view` of a line; `view` where it is not written there."""
    found = _VIEW.search(line)
    return found.group() if found else "view"


FIX = ChannelsLast()
