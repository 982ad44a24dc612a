"""Things for whose sake a program may need `torch.cuda.synchronize`, noticed as they happen."""

import sys
from collections.abc import Callable
from typing import Any

from stepscope.fixes.base import Hands
from stepscope.fixes.lazy_callers import caller, users_caller

_OTHER_CUDA = ("cupy", "numba.cuda", "pycuda", "jax", "tensorflow")


def other_cuda_users() -> str | None:
    """A library in use that puts work on the device past torch, on streams of its own."""
    return next((name for name in _OTHER_CUDA if name in sys.modules), None)


def watch(hands: Hands, found: Callable[[str], None]) -> None:
    """`found("a copy … at file:line")` for each thing that makes a synchronisation matter.

    What stepscope does itself does not count, nor do streams inside of libraries.
    """
    import torch

    seams = hands.seams
    fills: dict[int, int] = {}  # address of pinned memory copied from → how often it was written

    def to_host(source: Any) -> None:
        if source.is_cuda and caller(__file__) is not None:
            found(f"a non-blocking copy to the host at {hands.place()}")

    def to_device(source: Any) -> None:
        """Pinned memory filled again must not be while it is still being copied."""
        if source.is_cuda or not source.is_pinned():
            return
        address, version = source.data_ptr(), source._version
        if version > fills.setdefault(address, version):
            found(f"the pinned memory that is filled again and again for {hands.place()}")

    def moved(call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("non_blocking") and True not in _flags(args):
            return call(tensor, *args, **kwargs)
        result = call(tensor, *args, **kwargs)
        if not result.is_cuda:
            to_host(tensor)
        else:
            to_device(tensor)
        return result

    def copied(call: Any, target: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(target, source, *args, **kwargs)
        if kwargs.get("non_blocking") or True in _flags(args):
            if not target.is_cuda:
                to_host(source)
            else:
                to_device(source)
        return result

    def used_by_program(what: str) -> Any:
        def used(call: Any, *args: Any, **kwargs: Any) -> Any:
            if users_caller(__file__) is not None:
                found(f"{what} at {hands.place()}")
            return call(*args, **kwargs)

        return used

    def viewed(call: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not tensor.is_cuda and users_caller(__file__) is not None and tensor.is_pinned():
            found(f"pinned memory shared with numpy at {hands.place()}")
        return call(tensor, *args, **kwargs)

    seams.moved(moved)
    seams.around(torch.Tensor, "copy_", copied)
    seams.around(torch.Tensor, "numpy", viewed)
    seams.around(torch.cuda.Stream, "__new__", used_by_program("the stream made"))
    seams.around(torch.cuda, "stream", used_by_program("the stream used"))
    for owner in (torch.cuda.Stream, torch.cuda.Event):
        seams.around(owner, "query", used_by_program("asking whether the device is done"))


def _flags(args: tuple[Any, ...]) -> tuple[bool, ...]:
    """The arguments that are flags; comparing others, tensors say, with True would mislead."""
    return tuple(arg for arg in args if type(arg) is bool)
