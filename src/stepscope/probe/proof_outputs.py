"""What an inference program's models return, for a proof: a part of each of the first outputs."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch.compiler import is_compiling

from stepscope.probe.core import Core

OUTPUTS = "outputs.npz"
_CALLS = 20
_MOST = 4096


class Outputs:
    """Keeps values of the first root calls on their device until the end.

    They are dropped once the program turns out to train.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kept: list[tuple[Any, Any]] = []
        self._done = False

    def install(self) -> None:
        """Outside of every fix: what the program gets to see is kept."""
        self._core.around_root.insert(0, self._called)
        self._core.fixing = True
        self._core.on_end.append(self._write)

    def _called(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        result = call(*args, **kwargs)
        if not self._done and not is_compiling() and not self._core.device.capturing:
            self._done = self._trains() or len(self._kept) >= _CALLS
            if not self._done:
                try:
                    self._keep(result)
                except Exception as problem:
                    self._done = True
                    self._core.facts.write("problem", text=f"no outputs kept: {problem!r}")
        return result

    def _trains(self) -> bool:
        return bool(self._core.optimizers or self._core.backwards or self._core.stepping)

    def _keep(self, result: Any) -> None:
        leaves = [leaf for leaf in tensors(result) if leaf.is_floating_point() and leaf.numel()]
        leaf = next((leaf for leaf in leaves if leaf.numel() > 1), leaves[0] if leaves else None)
        if leaf is not None:
            self._kept.append((values_of(leaf), top1_of(leaf)))

    def _write(self) -> None:
        if not self._kept or self._trains():
            return
        import numpy

        arrays: dict[str, Any] = {}
        for number, (values, top1) in enumerate(self._kept):
            arrays[f"values_{number}"] = values.float().cpu().numpy()
            if top1 is not None:
                arrays[f"top1_{number}"] = top1.cpu().numpy()
        numpy.savez(Path(self._core.options.folder) / OUTPUTS, **arrays)
        self._core.facts.write("outputs", file=OUTPUTS, calls=len(self._kept))


def tensors(value: Any) -> Iterator[Any]:
    """Every tensor in what a model returned, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors(getattr(value, field.name, None))


def values_of(tensor: Any) -> Any:
    """At most 4,096 of a tensor's values, evenly taken; a copy on its device."""
    return _evenly(tensor.detach().reshape(-1)).clone()


def top1_of(tensor: Any) -> Any:
    """Where the largest value along the last dimension is, of at most 4,096 rows; None: no rows."""
    if tensor.dim() < 2 or tensor.shape[-1] < 2:
        return None
    return _evenly(tensor.detach().reshape(-1, tensor.shape[-1])).argmax(-1)


def _evenly(rows: Any) -> Any:
    count = len(rows)
    if count <= _MOST:
        return rows
    return rows[torch.arange(_MOST, device=rows.device) * count // _MOST]
