"""Moves of tensors to the GPU, as the program writes them, and the tensors of a batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Path = tuple[Any, ...]
_MOST: Final = 256
_DEEP: Final = 6


@dataclass(frozen=True, slots=True)
class Move:
    """Where a call of `Tensor.to` or `Tensor.cuda` puts a tensor, and as what."""

    device: Any
    dtype: Any = None
    memory_format: Any = None


def aimed(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Move | None:
    """What a call of the tensor method `name`, `to` or `cuda`, asks for.

    None where that is no move off the CPU, or one of a kind that is better left alone.
    """
    import torch

    try:
        if name == "cuda":
            asked = args[0] if args else kwargs.get("device")
            device = (
                torch.device("cuda", asked) if type(asked) is int else torch.device(asked or "cuda")
            )
            dtype, form = None, kwargs.get("memory_format")
        else:
            device, dtype, _, form = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return None
    if device is None or device.type == "cpu":
        return None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return Move(device, dtype, form)


def waits(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether such a call leaves it open whether to wait for the copy."""
    return "non_blocking" not in kwargs and not any(type(arg) is bool for arg in args)


def version(tensor: Any) -> int | None:
    """How often a tensor was changed in place; None where torch does not count."""
    return None if tensor.is_inference() else int(tensor._version)


def storage(tensor: Any) -> int | None:
    """What tensors that share memory have in common; None for those without memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def tensors(batch: Any) -> Iterator[tuple[Path, Any]]:
    """The tensors on the CPU in a batch, whatever it is made of, each with the way to it."""
    import torch

    found = 0
    waiting: list[tuple[Path, Any]] = [((), batch)]
    while waiting and found < _MOST:
        path, thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            if thing.device.type == "cpu":
                found += 1
                yield path, thing
        elif len(path) < _DEEP:
            waiting += [((*path, key), held) for key, held in _inside(thing)]


def _inside(thing: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(thing, Mapping):
        yield from thing.items()
    elif isinstance(thing, (list, tuple)):
        if len(thing) <= _MOST:
            yield from enumerate(thing)
    elif hasattr(thing, "__dict__") and not isinstance(thing, type):
        yield from vars(thing).items()
