"""The fastest arithmetic a model's products may use, whoever decided on it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

_SHORT = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}


class _Seen(Exception):  # noqa: N818
    """Ends a call of the model as soon as it was seen under what it runs."""


def arithmetic(model: Any, device: Any, *inputs: Any) -> str:
    """ "fp32", "tf32", "bf16" or "fp16", for a model that has been called with such inputs.

    Half precision by the dtype of its parameters or of autocast at its call; TF32 where it is
    allowed for convolutions and recurrent layers, or for products, and the model has such layers.
    """
    halves = {_SHORT.get(str(parameter.dtype)) for parameter in model.parameters()} - {None}
    half = _autocast(model, device, inputs) or next(iter(sorted(map(str, halves))), None)
    if half is not None:
        return half
    return "tf32" if device.type == "cuda" and _tf32(model) else "fp32"


@contextmanager
def as_written() -> Iterator[None]:
    """Models that are compiled run as they are written inside, so that nothing is compiled anew."""
    import torch

    used = "torch._dynamo" in sys.modules
    with torch.compiler.set_stance("force_eager") if used else nullcontext():
        yield


def _autocast(model: Any, device: Any, inputs: Any) -> str | None:
    """Half precision of autocast around the model's forward; None without.

    A fix may put it around the call, so the call is begun once more, and ended by a hook before
    it computes anything. The hook must not be there while the model is captured or compiled.
    """
    import torch

    found: list[str | None] = []

    def look(*_: Any) -> None:
        on = torch.is_autocast_enabled(device.type)
        found.append(_SHORT.get(str(torch.get_autocast_dtype(device.type))) if on else None)
        raise _Seen

    handle = model.register_forward_pre_hook(look)
    try:
        with torch.no_grad(), as_written():
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
    by_cudnn = any(isinstance(layer, cudnn) for layer in layers)
    others = any(not isinstance(layer, cudnn) for layer in layers)
    return (by_cudnn and _allowed("cudnn")) or (others and _allowed("matmul"))


def _allowed(what: str) -> bool:
    """Whether TF32 is, by the older switch or, where torch refuses to mix them, by the newer."""
    import torch

    backends = torch.backends
    try:
        return bool(
            backends.cudnn.allow_tf32 if what == "cudnn" else backends.cuda.matmul.allow_tf32
        )
    except RuntimeError:
        newer = backends.cudnn.conv if what == "cudnn" else backends.cuda.matmul
        return bool(newer.fp32_precision == "tf32")
