"""Tensors nested in batches, inputs and outputs, and the calls that move them to the GPU."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

NestedPath = tuple[Any, ...]
_MOST: Final = 256
_DEEP: Final = 6


@dataclass(frozen=True, slots=True)
class Move:
    """Where a call of `Tensor.to` or `Tensor.cuda` puts a tensor, and as what."""

    device: Any
    dtype: Any = None
    memory_format: Any = None


def requested_move(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Move | None:
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


def leaves_blocking_open(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether such a call leaves it open whether to wait for the copy."""
    return "non_blocking" not in kwargs and not any(type(arg) is bool for arg in args)


def tensor_version(tensor: Any) -> int | None:
    """How often a tensor was changed in place; None where torch does not count."""
    return None if tensor.is_inference() else int(tensor._version)


def storage_key(tensor: Any) -> int | None:
    """What tensors that share memory have in common; None for those without memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def cpu_tensors(batch: Any) -> Iterator[tuple[NestedPath, Any]]:
    """The tensors on the CPU in a batch, whatever it is made of, each with the way to it."""
    import torch

    found = 0
    waiting: list[tuple[NestedPath, Any]] = [((), batch)]
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


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same value with `change(tensor)` in place of every tensor in it: in tuples, lists,
    dicts and dataclasses, however deep. A container none of whose tensors change stays itself.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return _in_dict(value, change)
    if isinstance(value, tuple | list):
        return _in_sequence(value, change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _in_fields(value, change)
    return value


def _in_sequence(value: Any, change: Callable[[Any], Any]) -> Any:
    items = [map_tensors(item, change) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if hasattr(value, "_fields"):  # a named tuple; PackedSequence refuses its own constructor
        return tuple.__new__(type(value), items)
    return type(value)(items)


def _in_dict(value: Any, change: Callable[[Any], Any]) -> Any:
    items = {key: map_tensors(item, change) for key, item in value.items()}
    if all(items[key] is value[key] for key in items):
        return value
    new = copy.copy(value)
    for key, item in items.items():
        if item is not value[key]:
            new[key] = item  # transformers' outputs set the attribute along
    return new


def _in_fields(value: Any, change: Callable[[Any], Any]) -> Any:
    new = None
    for field in dataclasses.fields(value):
        old = getattr(value, field.name, None)
        item = map_tensors(old, change)
        if item is not old:
            new = new or copy.copy(value)
            object.__setattr__(new, field.name, item)
    return new or value
