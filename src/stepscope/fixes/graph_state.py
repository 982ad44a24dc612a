"""What a forward depends on and may change besides tensors: attributes and random states."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_OWN = {"_parameters", "_buffers", "_modules"}


def attributes(module: Any) -> dict[tuple[str, str], Any]:
    """A mark of every attribute of a model and its parts, the same as long as none changes."""
    found: dict[tuple[str, str], Any] = {}
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if key not in _OWN:
                found[name, key] = _mark(value)
        for key, buffer in part._buffers.items():
            found[name, key] = id(buffer)
    return found


def changed(before: dict[tuple[str, str], Any], after: dict[tuple[str, str], Any]) -> list[str]:
    """The names of attributes that are not what they were."""
    keys = sorted(before.keys() | after.keys())
    return [".".join(filter(None, key)) for key in keys if before.get(key) != after.get(key)]


def _mark(value: Any) -> Any:
    if isinstance(value, bool | int | float | str | None):
        return value
    if isinstance(value, list | tuple | dict | set):
        return id(value), len(value)
    return id(value)


def host_randomness(kind: str) -> list[Any]:
    """States of the generators other than that of the device, whose draws a graph would repeat."""
    import torch

    states: list[Any] = [random.getstate()]
    if kind != "cpu":
        states.append(torch.get_rng_state().tolist())
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states.append((kind, keys.tolist(), *rest))
    return states


@contextmanager
def kept(module: Any) -> Iterator[None]:
    """Put buffers and random states back afterwards, as if what is done here had not been."""
    import torch

    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = {p.device for p in module.parameters() if p.device.type == "cuda"}
    numpy = sys.modules.get("numpy")
    python = random.getstate()
    legacy = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(list(devices)):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)
        for buffer, value in buffers:
            buffer.data.copy_(value)  # unseen by autograd, which may have kept it for a backward
