"""The arithmetic of a model: its floating-point operations, counted on a copy without values, and
the fastest precision its matrix products may use.
"""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

_SAMPLES = 2  # batch normalisation needs more than one


def flops_per_sample(
    model: Any, inputs: Callable[[int], Any], train: bool
) -> tuple[float | None, str | None]:
    """Operations of a forward, and of a backward if `train`, per sample; or why they are unknown. A
    multiply-add is two operations; only products, convolutions and attention count. `inputs(n)`
    makes n samples on the CPU in the model's form. Neither the model nor the random state is
    touched."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    def count(place: str) -> float:
        copied = _copied(model, place)
        given = tree_map_only(torch.Tensor, lambda tensor: tensor.to(place), inputs(_SAMPLES))
        copied.train(train)
        with torch.set_grad_enabled(train), _counting() as counter:
            leaves = tree_leaves(copied(given))
            if train:
                tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
                loss = sum(leaf.float().sum() for leaf in tensors if leaf.requires_grad)
                # To an observer of the program, torch.autograd.backward would end a step.
                inspect.unwrap(torch.autograd.backward)(loss)
        return float(counter.get_total_flops()) / _SAMPLES

    return _safely(model, count)


def flops_per_generation(
    model: Any, prompt: int, new_tokens: int
) -> tuple[float | None, str | None]:
    """Operations of one sequence: its prompt, then one call for every further token."""

    def count(place: str) -> float:
        import torch

        tokens = torch.zeros((1, prompt), dtype=torch.int64, device=place)
        decoder = _copied(model, place).eval()
        with torch.no_grad(), _counting() as first:
            _, cache = decoder.prefill(tokens, length=prompt + new_tokens)
        with torch.no_grad(), _counting() as further:
            decoder.decode(tokens[:, :1], cache)
        return float(first.get_total_flops() + (new_tokens - 1) * further.get_total_flops())

    return _safely(model, count)


def _safely(model: Any, count: Callable[[str], float]) -> tuple[float | None, str | None]:
    """Count without values if the model allows, else with a few samples; never raises."""
    import torch

    reason = "it has no operations that are counted"
    places = ["meta", "cpu"]
    if any(isinstance(module, torch.nn.RNNBase) for module in model.modules()):
        places.reverse()  # thousands of small operations are slower without values
    for place in places:
        try:
            with torch.random.fork_rng(devices=[]), unobserved_calls(), _plain_layers():
                found = count(place)
        except Exception as error:
            first = next(filter(None, map(str.strip, str(error).splitlines())), "")
            reason = f"{type(error).__name__}: {first[:160]}"
            continue
        if found > 0:
            return found, None
    return None, reason


def _copied(model: Any, place: str) -> Any:
    import torch

    if place == "meta":  # replaced one by one, so that none is copied in full
        known = {
            id(tensor): torch.nn.Parameter(tensor.to("meta"), tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter)
            else tensor.to("meta")
            for tensor in (*model.parameters(), *model.buffers())
        }
        return copy.deepcopy(model, known).to("meta")
    return copy.deepcopy(model)


def _counting() -> Any:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    # torch's own count of a convolution's backward ignores groups.
    own = {torch.ops.aten.convolution_backward: _convolution_backward}
    return FlopCounterMode(display=False, custom_mapping=own)


def _convolution_backward(grads: Any, inputs: Any, weights: Any, *rest: Any, **_: Any) -> int:
    """From the shapes: each wanted gradient takes as many products as the forward."""
    transposed, mask = rest[4], rest[7]
    places = inputs[2:] if transposed else grads[2:]
    return int(2 * inputs[0] * prod(places) * prod(weights) * (mask[0] + mask[1]))


@contextmanager
def unobserved_calls() -> Iterator[None]:
    """Call modules unpatched: an observer that looks for models must not find these."""
    import torch

    before = torch.nn.Module.__call__
    torch.nn.Module.__call__ = torch.nn.Module._wrapped_call_impl
    try:
        yield
    finally:
        torch.nn.Module.__call__ = before


@contextmanager
def _plain_layers() -> Iterator[None]:
    """Run recurrent layers as their products, not as one library operation."""
    import torch

    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(before)


_SHORT = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


class _Seen(Exception):  # noqa: N818
    """Ends a model's call once its autocast state has been seen."""


def fastest_arithmetic(model: Any, device: Any, *inputs: Any) -> str:
    """The arithmetic of a model already called with such inputs: "fp32", "tf32", "bf16" or "fp16".
    Half precision by the dtype of its parameters or of autocast at its call; TF32 if it is allowed
    for convolutions and recurrent layers, or for products, and the model has such layers."""
    halves = {_SHORT.get(str(parameter.dtype)) for parameter in model.parameters()} - {None}
    half = _autocast(model, device, inputs) or next(iter(sorted(map(str, halves))), None)
    if half is not None:
        return half
    return "tf32" if device.type == "cuda" and _tf32(model) else "fp32"


@contextmanager
def without_compile() -> Iterator[None]:
    """Run compiled models eagerly, so that nothing is recompiled."""
    import torch

    used = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if used else nullcontext():
        yield


def _autocast(model: Any, device: Any, inputs: Any) -> str | None:
    """The half precision of autocast around the model's forward, or None. A fix may put it around
    the call, so a call is started and ended by a hook before it computes anything. The hook must
    not exist while the model is captured or compiled."""
    import torch

    found: list[str | None] = []

    def read_type(*_: Any) -> None:
        on = torch.is_autocast_enabled(device.type)
        found.append(_SHORT.get(str(torch.get_autocast_dtype(device.type))) if on else None)
        raise _Seen

    handle = model.register_forward_pre_hook(read_type)
    try:
        with torch.no_grad(), without_compile():
            model(*inputs)
    except Exception:
        pass
    finally:
        handle.remove()
    return found[0] if found else None


def _tf32(model: Any) -> bool:
    import torch

    cudnn = (torch.nn.modules.conv._ConvNd, torch.nn.RNNBase)
    layers = [m for m in model.modules() if next(m.parameters(recurse=False), None) is not None]
    by_cudnn = {isinstance(layer, cudnn) for layer in layers}
    return (True in by_cudnn and _allows_tf32(torch.backends.cudnn)) or (
        False in by_cudnn and _allows_tf32(torch.backends.cuda.matmul)
    )


def _allows_tf32(backend: Any) -> bool:
    """By the older switch or, where torch refuses to mix them, by the newer."""
    try:
        return bool(backend.allow_tf32)
    except RuntimeError:
        return bool(getattr(backend, "conv", backend).fp32_precision == "tf32")
