"""Change the tensors inside of what a model is given or returns."""

import copy
import dataclasses
from collections.abc import Callable
from typing import Any


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
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
    items = [changed(item, change) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if hasattr(value, "_fields"):  # a named tuple; PackedSequence refuses its own constructor
        return tuple.__new__(type(value), items)
    return type(value)(items)


def _in_dict(value: Any, change: Callable[[Any], Any]) -> Any:
    items = {key: changed(item, change) for key, item in value.items()}
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
        item = changed(old, change)
        if item is not old:
            new = new or copy.copy(value)
            object.__setattr__(new, field.name, item)
    return new or value
