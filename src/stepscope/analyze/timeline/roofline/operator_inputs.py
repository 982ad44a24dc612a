"""An operator's recorded inputs (tensors with dtype and strides, values), and its cost."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from stepscope.record.timeline import Shapes

Dims = tuple[int, ...]

# As Kineto writes the type of an element: our name, and bytes each.
DTYPES: Final = {
    "float": ("fp32", 4), "double": ("fp64", 8),
    "c10::Half": ("fp16", 2), "at::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2), "at::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1), "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1), "c10::Float8_e5m2fnuz": ("fp8", 1),
    "signed char": ("int8", 1), "unsigned char": ("uint8", 1), "bool": ("bool", 1),
    "short": ("int16", 2), "short int": ("int16", 2), "int": ("int32", 4),
    "long": ("int64", 8), "long int": ("int64", 8),
    "c10::complex<float>": ("complex64", 8), "c10::complex<double>": ("complex128", 16),
}  # fmt: skip
FLOATING: Final = ("fp64", "fp32", "fp16", "bf16", "fp8")
_LARGEST: Final = 1 << 40  # a dimension beyond this, or as many elements, is a damaged number
_DEEPEST: Final = 16


@dataclass(frozen=True, slots=True)
class InputTensor:
    """A tensor that an operator got."""

    dims: Dims
    dtype: str
    itemsize: int
    strides: Dims | None = None

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> int:
        """What has to be read at least: expanded dimensions repeat the same memory."""
        if self.strides is None:
            return self.elements * self.itemsize
        stored = (d for d, s in zip(self.dims, self.strides, strict=True) if s or not d)
        return prod(stored) * self.itemsize


Argument = InputTensor | list[InputTensor] | None


@dataclass(frozen=True, slots=True)
class Inputs:
    """An operator's arguments in order; what is not a tensor is None there and has a value."""

    arguments: list[Argument]
    values: list[Any]  # int, float, bool, list of such, str, or None

    def tensor(self, n: int) -> InputTensor | None:
        argument = self.arguments[n] if n < len(self.arguments) else None
        return argument if isinstance(argument, InputTensor) else None

    def value(self, n: int) -> Any:
        return self.values[n] if n < len(self.values) else None

    def numbers(self, n: int | None, count: int, default: int = 0) -> Dims | None:
        """A list of `count` integers (one integer stands for all); None if it is not one.

        Without such an argument (`n` None), the default.
        """
        value = default if n is None else self.value(n)
        if isinstance(value, int):
            value = [value]
        if not isinstance(value, list) or len(value) not in (1, count):
            return None
        if not all(type(v) is int and abs(v) < _LARGEST for v in value):
            return None
        return tuple(value if len(value) == count else value * count)

    @property
    def tensors(self) -> list[InputTensor]:
        """All of them, those in lists too."""
        flat: list[InputTensor] = []
        for argument in self.arguments:
            if argument is not None:
                flat += [argument] if isinstance(argument, InputTensor) else argument
        return flat


def read_inputs(
    shapes: Shapes, list_dtype: str | None = None, list_elements: int | None = None
) -> Inputs | None:
    """None where dims or types were not recorded, or make no sense.

    The dtype of tensors in lists is never recorded, and long lists have no dims: `list_dtype` and
    `list_elements` (in all of a list) replace them.
    """
    dims, types = _load(shapes.dims), _load(shapes.types)
    if dims is None or types is None or len(dims) != len(types):
        return None
    strides = _load(shapes.strides) or []
    strides += [None] * (len(dims) - len(strides))
    found: list[Argument] = []
    for shape, kind, stride in zip(dims, types, strides, strict=False):
        kind = kind if isinstance(kind, str) else ""
        if kind in DTYPES:
            if not _is_shape(shape):
                return None
            found.append(_tensor(shape, kind, stride))
        elif kind in ("TensorList", "GenericList[Tensor,]") and list_dtype in DTYPES:
            long = shape == [] and list_elements is not None
            parts: Any = [[list_elements]] if long else shape
            lists = isinstance(parts, list) and parts and all(map(_is_shape, parts))
            found.append([_tensor(part, list_dtype, None) for part in parts] if lists else None)
        else:
            found.append(None)
    return Inputs(found, [_value(text) for text in _load(shapes.values) or []])


def _tensor(dims: list[int], kind: str, strides: Any) -> InputTensor:
    same = isinstance(strides, list) and len(strides) == len(dims)
    same = same and all(type(s) is int for s in strides)
    return InputTensor(tuple(dims), *DTYPES[kind], tuple(strides) if same else None)


def _is_shape(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _DEEPEST
        and all(type(d) is int and 0 <= d < _LARGEST for d in value)
        and prod(value) < _LARGEST
    )


def _load(text: bytes) -> list[Any] | None:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return loaded if isinstance(loaded, list) else None


def _value(text: Any) -> Any:
    """A concrete input, which Kineto writes as text: "1", "True", "[3, 3]", ""."""
    if not isinstance(text, str) or not text:
        return None
    if text.startswith("[") and text.endswith("]"):
        return [_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    return _scalar(text)


def _scalar(text: str) -> int | float | bool | str:
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def broadcast(*shapes: Dims) -> Dims | None:
    """The shape that tensors of these have together; None where they do not fit."""
    rank = max(map(len, shapes))
    out: list[int] = []
    for sides in zip(*((1,) * (rank - len(dims)) + dims for dims in shapes), strict=True):
        longer = {side for side in sides if side != 1} or {1}
        if len(longer) > 1:
            return None
        out += longer
    return tuple(out)


def total_bytes(tensors: Iterable[InputTensor]) -> int:
    """What has to be read at least to see all of them."""
    return sum(tensor.bytes for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of an operator has to do at least."""

    kind: str  # a category of kernels
    flops: int
    bytes: int | None  # None where an input's size is not known
    dtype: str  # of the arithmetic: the first floating input's
    matrix: bool = False  # matrix products, which matrix units can do


Formula = Callable[[Inputs], Cost | None]
