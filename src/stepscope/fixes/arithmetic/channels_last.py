"""Convolutions with channels as the fastest dimension, the order tensor cores want. The first call
can be undone."""

import os
import re
from typing import Any
from weakref import WeakSet

from stepscope.analyze.replay.known import Changes, KnownProgram, kernel_rows
from stepscope.fixes.applicability import ALREADY_ON, ObservedProgram, unsuitable
from stepscope.fixes.base import Fix, FixContext, FixKind, LiveProgram, SourceEdit, refused_by_all
from stepscope.fixes.inspect.models import StateSnapshot, convolution_weights
from stepscope.fixes.inspect.tensors import map_tensors
from stepscope.fixes.inspect.user_code import raise_location
from stepscope.fixes.lazy import changes, tasks, torch
from stepscope.record.fix import (
    MODEL,
    Applied,
    Broke,
    NotApplied,
    Reason,
    SourceLine,
    Switch,
)
from stepscope.record.trial import Rejection

NO_IMAGE_CONVOLUTIONS = Reason("no_image_convolutions", "no 2d or 3d convolutions")
NO_CONVOLUTIONS = Reason("no_convolutions", "{object} has no 2d or 3d convolutions")
NEEDS_CONTIGUOUS = Reason(
    "needs_contiguous", "`{code}`{at} needs contiguous memory; use `reshape`{left}"
)


class _ConvolutionWeights:
    """A model's convolution weights; the parameters stay the same objects with the same values."""

    def __init__(self, module: Any) -> None:
        self._weights = [w for w in convolution_weights(module) if w.dim() in (4, 5)]
        self._last = False
        self._strides: list[tuple[int, ...]] = []  # before they were rearranged
        self.dims = {weight.dim() for weight in self._weights}
        """4 where there are convolutions over images, 5 where over volumes."""

    def arrange(self, channels_last: bool) -> None:
        """Make channels the fastest dimension, or restore the original order. A model first called
        in inference mode may be trained later."""
        self._last = channels_last
        if channels_last:
            self._strides = [weight.stride() for weight in self._weights]
        for place, weight in enumerate(self._weights):
            with torch.inference_mode(weight.is_inference()):
                weight.data = self._arranged(weight.data, place)
                if weight.grad is not None:
                    weight.grad.data = self._arranged(weight.grad.data, place)

    def arrange_state(self, optimizer: Any) -> None:
        """Arrange an optimizer's averages like their weights, as fused kernels require."""
        for place, weight in enumerate(self._weights):
            state = optimizer.state.get(weight)
            for key, value in (state or {}).items():
                if isinstance(value, torch.Tensor) and value.shape == weight.shape:
                    with torch.inference_mode(value.is_inference()):
                        state[key] = self._arranged(value, place)

    def _arranged(self, tensor: Any, place: int) -> Any:
        if not self._last:
            strides = self._strides[place]
            if tensor.stride() == strides:
                return tensor
            return torch.empty_strided(
                tensor.shape, strides, dtype=tensor.dtype, device=tensor.device
            ).copy_(tensor)
        wanted = _channels_last(tensor)
        arranged = tensor.contiguous(memory_format=wanted)
        # Where a dimension is 1 either format will do, but gradients come in the wanted one's
        # strides, and fused optimizers compare those.
        strides = torch.empty(tensor.shape, device="meta", memory_format=wanted).stride()
        return arranged.as_strided(tensor.shape, strides)


_LAYOUT_LEFT = 0.05  # of layout changes: the batch itself is still changed once
_NORMALISING = 0.6  # of that between convolutions in fp32: slow in NCHW, a prior (ResNet-50, H200)
_LAYOUT_HOST = 1.04  # strided weights cost forward and backward that much more host time (ResNets)
_VIEW = re.compile(r"[\w.\[\]]*\.view(?=\()")
_TRACED = re.compile(r'File "(.+)", line (\d+), in .*\n\s*(.+)')
_FAILURES = ("view size is not compatible", "Cannot view a tensor with shape")


class ChannelsLast(Fix):
    """Weights are rearranged in place, inputs on their way in, outputs on their way out."""

    name = "channels_last"
    group = "arithmetic"
    title = "convolutions in channels-last memory format"
    kind = FixKind.NUMERIC
    effort = "two lines"
    switch = Switch.AT_STEP
    missing = "no model was called"
    after_model = "{0} = {0}.to(memory_format=torch.channels_last)"
    _layout: "_Layout | None" = None

    def applies(self, program: ObservedProgram) -> Rejection | None:
        if program.convolved_dims.isdisjoint((2, 3)):
            return unsuitable(NO_IMAGE_CONVOLUTIONS)
        models = program.models
        on = models and all(model["memory_format"] == "channels_last" for model in models)
        return unsuitable(ALREADY_ON) if on else None

    def predict(self, value: str | None, known: KnownProgram) -> Changes:
        """Layout changes around convolutions disappear, and normalising between them takes less
        time. None if there are no layout changes."""
        if not any(one.category == "layout change" for one in kernel_rows(known)):
            return None
        batch_norms = tasks.select_kernels("normalisation", operator="cudnn_batch_norm")
        return [
            changes.scale_kernels(tasks.select_kernels("layout change"), _LAYOUT_LEFT),
            changes.scale_kernels(batch_norms, _NORMALISING),
            *(
                changes.scale_host(tasks.select_host(phase=p), _LAYOUT_HOST)
                for p in ("forward", "backward")
            ),
        ]

    def check(self, live: LiveProgram) -> NotApplied | None:
        return refused_by_all(
            _refused(one.module, _ConvolutionWeights(one.module)) for one in live.models
        )

    def install(self, value: Any, context: FixContext) -> None:
        layout = self._layout = _Layout(context)
        context.root_found(layout.found)
        context.seams.root_called(layout.called)
        context.watching.optimizer_made(lambda optimizer, _: layout.optimizers.add(optimizer))
        context.when_switched(layout.switched)
        context.seams.around(torch.optim.Optimizer, "load_state_dict", layout.loaded)

    def explain(self, error: BaseException, line: str) -> Broke | None:
        if not _is_view_error(error) or self._layout is None or not self._layout.models:
            return None
        return Broke(NEEDS_CONTIGUOUS, code=_view_in(line))

    def edit(self, value: Any, line: str) -> SourceEdit:
        return SourceEdit(
            "put these after the model is made, and pass inputs through "
            "x.to(memory_format=torch.channels_last)",
            before=(self.after_model.format("model"),),
        )


class _Layout:
    """Which models are in the other format."""

    def __init__(self, context: FixContext) -> None:
        self._context = context
        self.models: dict[int, _ConvolutionWeights] = {}
        self._tried: set[tuple[int, bool, bool]] = set()
        self._refusing: set[int] = set()  # models that need contiguous memory
        self.optimizers: WeakSet[Any] = WeakSet()

    def switched(self, on: bool) -> None:
        """Off, every weight is in the order it was in before."""
        for weights in () if on else self.models.values():
            self._put_back(weights)
        self.models.clear()

    def found(self, module: Any) -> None:
        """Rearrange a model's weights before its first call."""
        if id(module) in self._refusing:
            return
        weights = _ConvolutionWeights(module)
        refused = _refused(module, weights)
        if refused is not None:
            self._context.not_applied(refused)
            return
        weights.arrange(channels_last=True)
        self.models[id(module)] = weights
        self._arrange_states(weights)

    def called(self, call: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """A call with rearranged inputs. The first of a kind can be undone if it fails."""
        weights = self.models.get(id(module))
        if weights is None:
            return call(module, *args, **kwargs)
        mode = (id(module), module.training, torch.is_grad_enabled())
        capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
        before = None if mode in self._tried or capturing else StateSnapshot(module)
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
                name, place = type(module).__qualname__, self._context.place()
                self._context.applied(Applied(MODEL, name, place))
            return map_tensors(result, _outward)
        return call(module, *args, **kwargs)

    def loaded(self, call: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Loaded averages come in the format they were saved in."""
        result = call(optimizer, *args, **kwargs)
        for weights in self.models.values():
            weights.arrange_state(optimizer)
        return result

    def _give_up(self, module: Any, weights: _ConvolutionWeights, error: BaseException) -> None:
        where, line = raise_location(error.__traceback__)
        traced = _TRACED.findall(
            str(error)
        )  # from Dynamo, whose errors contain the place in their text
        if traced and ".view" not in line:
            file, number, line = traced[-1]
            where = SourceLine(os.path.basename(file), int(number))
        del self.models[id(module)]
        self._put_back(weights)
        self._refusing.add(id(module))
        name, view = type(module).__qualname__, _view_in(line)
        self._context.not_applied(NotApplied(NEEDS_CONTIGUOUS, MODEL, name, where, code=view))

    def _put_back(self, weights: _ConvolutionWeights) -> None:
        weights.arrange(channels_last=False)
        torch.clear_autocast_cache()  # it may keep the rearranged weights in half precision
        self._arrange_states(weights)

    def _arrange_states(self, weights: _ConvolutionWeights) -> None:
        for optimizer in self.optimizers:
            weights.arrange_state(optimizer)


def _refused(module: Any, weights: _ConvolutionWeights) -> NotApplied | None:
    name = type(module).__qualname__
    return None if weights.dims else NotApplied(NO_CONVOLUTIONS, object=name)


def _channels_last(tensor: Any) -> Any:
    """The channels-last format for an image or a volume."""
    return torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d


def _inward(values: Any, dims: set[int]) -> Any:
    """What a model is given, with images and volumes rearranged."""

    def rearranged(tensor: Any) -> Any:
        if tensor.dim() in dims and tensor.is_floating_point() and not tensor.is_sparse:
            return tensor.contiguous(memory_format=_channels_last(tensor))
        return tensor

    return map_tensors(values, rearranged)


def _outward(tensor: Any) -> Any:
    """A model's outputs in the original format: the program may call `view` on them."""
    if tensor.dim() not in (4, 5) or tensor.is_sparse or tensor.is_contiguous():
        return tensor
    last = tensor.is_contiguous(memory_format=_channels_last(tensor))
    return tensor.contiguous() if last else tensor


def _is_view_error(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _FAILURES)


def _view_in(line: str) -> str:
    """The `x.view` of a line; `view` if it is not written there."""
    found = _VIEW.search(line)
    return found.group() if found else "view"


FIX = ChannelsLast()
