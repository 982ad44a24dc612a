"""The state a trial ends with: every weight, buffer and piece of optimizer state in a few numbers,
read once, when the steps that are compared are over.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import ref
from zlib import crc32

import torch

from stepscope.probe.core import Core
from stepscope.record.facts import ProblemFact, StateFact, TensorState
from stepscope.record.kinds import EndPart
from stepscope.record.problems import ProblemKind

_ROW, _ROWS = 1 << 16, 16  # values of a row, and rows taken at once: 8 MiB of float64
_SKETCH = 8
_POSITIVE = (1 << 62) - 1
_BITS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


def _mixed(positions: Any) -> Any:
    """Odd numbers of 64 bits that look random, always the same for a position."""
    mixed = (positions + 1) * 0x1E3779B97F4A7C15
    mixed = (mixed ^ (mixed >> 29)) * 0x3F58476D1CE4E5B9
    return (mixed ^ (mixed >> 32)) | 1


def _signs(mixed: Any, bit: int) -> Any:
    """1 or -1, by a bit of each."""
    return ((mixed >> bit) & 1).double() * 2 - 1


class _Sketcher:
    """Checksums of tensors' bits, their norms, and sums of their values under random signs: two
    tensors are about as far apart as these are. Computed on the device, drawing nothing."""

    def __init__(self) -> None:
        self._tables: dict[Any, tuple[Any, Any]] = {}

    def start(self, tensor: Any) -> tuple[Any, Any]:
        """The checksum, and the norm with the sums, still on the device."""
        values = tensor.detach()
        values = torch.view_as_real(values) if values.is_complex() else values
        values = values.reshape(-1)
        if values.device.type not in ("cpu", "cuda"):  # others lack 64 bits
            values = values.cpu()
        bits = values.contiguous().view(_BITS[values.element_size()])
        odd, signs = self._table(values.device)
        digest = torch.zeros((), dtype=torch.int64, device=values.device)
        told = torch.zeros(1 + _SKETCH, dtype=torch.float64, device=values.device)
        whole = len(values) // _ROW
        parts = [(row, min(row + _ROWS, whole), _ROW) for row in range(0, whole, _ROWS)]
        if len(values) % _ROW:
            parts.append((whole, whole + 1, len(values) % _ROW))
        for first, last, width in parts:
            here = slice(first * _ROW, first * _ROW + (last - first) * width)
            rows = torch.arange(first, last, dtype=torch.int64, device=values.device)
            checksums = (bits[here].view(-1, width).long() * odd[:width]).sum(1)
            digest += (checksums * _mixed(rows)).sum()
            numbers = values[here].view(-1, width).double()
            told[0] += numbers.square().sum()
            told[1:] += signs[:, :width] @ (_signs(_mixed(rows), 31) @ numbers)
        return digest, told

    def _table(self, device: Any) -> tuple[Any, Any]:
        if device not in self._tables:
            odd = _mixed(torch.arange(_ROW, dtype=torch.int64, device=device))
            signs = [_signs(odd, 3 + 7 * number) for number in range(_SKETCH)]
            self._tables[device] = odd, torch.stack(signs)
        return self._tables[device]


def sketch_tensors(state: list[tuple[EndPart, str, Any]]) -> list[TensorState]:
    """What is kept of each tensor or number; the device is waited for once."""
    sketcher, started = _Sketcher(), dict[Any, list[tuple[int, Any, Any]]]()
    told: dict[int, tuple[int, list[float]]] = {}
    with torch.no_grad():
        for at, (_, _, value) in enumerate(state):
            if isinstance(value, torch.Tensor):
                digest, numbers = sketcher.start(value)
                started.setdefault(digest.device, []).append((at, digest, numbers))
            else:
                numbers = [float(value) ** 2, *[float(value)] * _SKETCH]
                told[at] = crc32(repr(value).encode()), numbers
        for group in started.values():
            digests = torch.stack([digest for _, digest, _ in group]).tolist()
            sketches = torch.stack([numbers for *_, numbers in group]).tolist()
            for (at, *_), digest, numbers in zip(group, digests, sketches, strict=True):
                told[at] = digest, numbers
    return [_tensor_state(*one, *told[at]) for at, one in enumerate(state)]


def _tensor_state(
    part: EndPart, name: str, value: Any, digest: int, numbers: list[float]
) -> TensorState:
    real = isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())
    integral = not (real or isinstance(value, float))
    count = value.numel() if isinstance(value, torch.Tensor) else 1
    state = TensorState(
        part=part, name=name, digest=digest & _POSITIVE, count=count, integral=integral
    )
    if all(map(math.isfinite, numbers)):
        state.norm = math.sqrt(numbers[0])
        state.sketch = [float(f"{number:.7g}") for number in numbers[1:]]
    return state


def _is_plain(tensor: Any) -> bool:
    """Whether it is a tensor whose values are here, of no class of its own."""
    return (
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_meta or tensor.is_quantized)
        and tensor.numel() > 0
    )


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Tensors and numbers of an optimizer's state by name."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for at, inner in enumerate(value):
            yield from _leaves(inner, f"{name}.{at}")
    elif isinstance(value, bool | int | float) or _is_plain(value):
        yield name, value


def named_state(models: list[Any], optimizers: list[Any]) -> list[tuple[EndPart, str, Any]]:
    """Parameters and buffers of models, what optimizers hold besides, and their state. A name that
    is taken gets a number."""
    found: dict[tuple[EndPart, str], Any] = {}
    names: dict[int, str] = {}

    def add(part: EndPart, name: str, value: Any) -> str:
        name = name.replace("_orig_mod.", "")  # of a compiled model
        count = 1
        while (part, unique := name if count == 1 else f"{name} #{count}") in found:
            count += 1
        found[part, unique] = value
        return unique

    for model in models:
        for part, named in (
            (EndPart.WEIGHTS, model.named_parameters()),
            (EndPart.BUFFERS, model.named_buffers()),
        ):
            for name, tensor in named:
                if id(tensor) not in names and _is_plain(tensor):
                    names[id(tensor)] = add(part, name, tensor)
    for number, optimizer in enumerate(optimizers):
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        for at, tensor in enumerate(held):
            if id(tensor) not in names:
                names[id(tensor)] = f"{number}.{at}"
                if _is_plain(tensor):
                    names[id(tensor)] = add(EndPart.WEIGHTS, f"{number}.{at}", tensor)
            state = optimizer.state.get(tensor, {})
            for name, value in _leaves(state, names[id(tensor)]):
                add(EndPart.OPTIMIZER, name, value)
    return [(part, name, value) for (part, name), value in found.items()]


class StateRecorder:
    """Writes fact `state` once: after the last step asked for, or at the program's end.

    Models and optimizers are kept until then, as functions that made them may have returned; once
    another one appears only those that the program still has.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._models: list[ref[Any]] = []
        self._optimizers: list[ref[Any]] = []
        self._kept: list[Any] = []
        self._written = False

    def install(self) -> None:
        self._core.on_root.append(lambda model, _: self._met(self._models, model))
        self._core.on_optimizer.append(lambda one, _: self._met(self._optimizers, one))
        self._core.on_end.append(self._end)

    def _met(self, known: list[ref[Any]], one: Any) -> None:
        self._kept.clear()
        if not any(other() is one for other in known):
            known.append(ref(one))

    def step_ended(self, step: int) -> None:
        asked = self._core.options.steps
        if asked is not None and step >= asked:
            self._write(step)
        elif not self._kept:
            self._kept = [*_alive(self._models), *_alive(self._optimizers)]

    def _end(self) -> None:
        if self._core.stepping and not self._core.log.off:
            self._write(self._core.steps)
        self._kept.clear()

    def _write(self, step: int) -> None:
        if self._written or self._core.device.capturing:
            return
        self._written, log = True, self._core.log
        before, log.observing = log.observing, True
        try:
            tensors = named_state(_alive(self._models), _alive(self._optimizers))
            self._core.facts.write(StateFact(step=step, tensors=sketch_tensors(tensors)))
        except Exception as problem:
            fact = ProblemFact(kind=ProblemKind.NO_STATE, detail=repr(problem))
            self._core.facts.write(fact)
        finally:
            log.observing = before


def _alive(known: list[ref[Any]]) -> list[Any]:
    return [one for other in known if (one := other()) is not None]
