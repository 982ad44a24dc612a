"""Tensors nested in batches, inputs and outputs, and the calls that move them to the GPU."""

import copy
import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from stepscope.fixes.lazy import torch

NestedPath = tuple[Any, ...]
_MOST: Final = 256
_DEEP: Final = 6


@dataclass(frozen=True, slots=True)
class Move:
    """The target device and dtype of a `Tensor.to` or `Tensor.cuda` call."""

    device: Any
    dtype: Any = None
    memory_format: Any = None


def requested_move(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Move | None:
    """What a call of the tensor method `name`, `to` or `cuda`, requests. None unless it is a plain
    move off the CPU."""
    try:
        if name == "cuda":
            asked = args[0] if args else kwargs.get("device")
            named = ("cuda", asked) if type(asked) is int else (asked or "cuda",)
            device, dtype, form = torch.device(*named), None, kwargs.get("memory_format")
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
    """Whether such a call does not specify `non_blocking`."""
    return "non_blocking" not in kwargs and not any(type(arg) is bool for arg in args)


def tensor_version(tensor: Any) -> int | None:
    """How often a tensor was changed in place; None if torch does not count."""
    return None if tensor.is_inference() else int(tensor._version)


def storage_key(tensor: Any) -> int | None:
    """A key shared by tensors that share memory; None for tensors without memory."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def memory_of(tensor: Any) -> tuple[int, int] | None:
    """The first and the last byte of the memory a CPU tensor shows; None where it has none."""
    try:
        memory = tensor.untyped_storage()
        first, count = int(memory.data_ptr()), int(memory.nbytes())
    except (NotImplementedError, RuntimeError):
        return None
    return (first, first + count - 1) if count and tensor.device.type == "cpu" else None


def bytes_of(array: Any) -> tuple[int, int]:
    """The same of a numpy array that is not empty."""
    reach = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    first, last = sum(min(0, one) for one in reach), sum(max(0, one) for one in reach)
    start = int(array.ctypes.data)
    return start + first, start + last + array.itemsize - 1


def is_shared(tensor: Any) -> bool:
    """Whether other processes may see a tensor's memory. Some kinds of tensors cannot say."""
    try:
        return bool(tensor.is_shared())
    except (NotImplementedError, RuntimeError):
        return False


def cpu_tensors(batch: Any) -> Iterator[tuple[NestedPath, Any]]:
    """The CPU tensors in a batch of any structure, each with its path."""
    found = 0
    waiting: list[tuple[NestedPath, Any]] = [((), batch)]
    while waiting and found < _MOST:
        path, thing = waiting.pop()
        if isinstance(thing, torch.Tensor):
            if thing.device.type == "cpu":
                found += 1
                yield path, thing
        elif len(path) < _DEEP:
            inside: Iterable[tuple[Any, Any]] = ()
            if isinstance(thing, Mapping):
                inside = thing.items()
            elif isinstance(thing, (list, tuple)):
                inside = enumerate(thing) if len(thing) <= _MOST else ()
            elif hasattr(thing, "__dict__") and not isinstance(thing, type):
                inside = vars(thing).items()
            waiting += [((*path, key), held) for key, held in inside]


def map_tensors(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same value with `change(tensor)` in place of every tensor in it: in tuples, lists, dicts
    and dataclasses, however deep. A container without changed tensors is returned as is."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        items = [map_tensors(item, change) for item in value]
        if all(new is old for new, old in zip(items, value, strict=True)):
            return value
        kind: Any = type(value)
        named = hasattr(value, "_fields")  # PackedSequence refuses its own constructor
        return tuple.__new__(kind, items) if named else kind(items)
    put: Callable[[Any, Any, Any], None] = operator.setitem
    if isinstance(value, dict):
        held = value  # transformers' outputs set the attribute along
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        held = {one.name: getattr(value, one.name, None) for one in dataclasses.fields(value)}
        put = object.__setattr__
    else:
        return value
    mapped = {key: map_tensors(item, change) for key, item in held.items()}
    changed = {key: item for key, item in mapped.items() if item is not held[key]}
    new = copy.copy(value) if changed else value
    for key, item in changed.items():
        put(new, key, item)
    return new
