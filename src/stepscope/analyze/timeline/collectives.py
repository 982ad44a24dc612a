"""What a collective moved: its kind, its bytes, and what the links had to carry."""

import json
import re
from typing import Final, NamedTuple

from stepscope.record.timeline import Collective, Shapes

_KINDS: Final = tuple(
    (kind, re.compile(pattern, re.IGNORECASE))
    for kind, pattern in (
        ("all_reduce", r"all_?reduce|one_?shot|two_?shot|cross_device_reduce"),
        ("reduce_scatter", r"reduce_?scatter"),
        ("all_gather", r"all_?gather"),
        ("all_to_all", r"all_?to_?all|dispatch|combine"),
        ("broadcast", r"broadcast"),
        ("send_recv", r"send|recv|receive"),
        ("gather", r"gather"),
        ("scatter", r"scatter"),
        ("reduce", r"reduce"),
        ("barrier", r"barrier"),
        ("wait", r"^wait$"),
    )
)
_BYTES: Final = {
    "double": 8, "long": 8, "longint": 8, "int64": 8, "complexfloat": 8, "complexdouble": 16,
    "float": 4, "int": 4, "int32": 4, "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "shortint": 2, "char": 1, "signedchar": 1, "byte": 1, "unsignedchar": 1, "bool": 1, "int8": 1,
    "uint8": 1, "float32": 4, "float64": 8, "complex<float>": 8, "complex<double>": 16,
}  # fmt: skip
_ABSURD: Final = 1 << 60  # elements


class Sized(NamedTuple):
    """A collective's kind, and what is known of it."""

    kind: str
    bytes: int | None = None
    ranks: int | None = None  # how many take part
    group: str | None = None  # the process group's name and the ranks in it


def describe(collective: Collective | None, name: str, world_size: int | None = None) -> Sized:
    """A collective from its parameters, or where there are none from a kernel's name."""
    if collective is None:
        return Sized(kind_of(name), None, world_size)
    kind = kind_of(collective.name)
    kind = kind_of(name) if kind == "other" else kind
    group = " ".join(filter(None, (collective.group, collective.ranks)))
    return Sized(kind, moved_bytes(kind, collective), collective.group_size, group or None)


def kind_of(name: str) -> str:
    """The kind of collective that a kernel, an annotation or a parameter names, or "other"."""
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "other")


def dtype_bytes(dtype: str | None) -> int | None:
    """Bytes of one element; None for a type not known."""
    plain = (dtype or "").lower().replace("c10::", "").replace("torch.", "").replace(" ", "")
    return 1 if plain.startswith("float8") else _BYTES.get(plain)


def moved_bytes(kind: str, collective: Collective) -> int | None:
    """The size of a collective as bandwidths are reckoned: an all-gather's whole output.

    None where it was not recorded.
    """
    size = dtype_bytes(collective.dtype)
    given, made, ranks = collective.in_elements, collective.out_elements, collective.group_size
    elements = given
    if kind == "all_gather":
        elements = made or (given * ranks if given is not None and ranks else None)
    elif not given:
        elements = made
    if size is None or elements is None or not 0 <= elements < _ABSURD:
        return None
    return elements * size


def shape_bytes(shapes: Shapes) -> int | None:
    """Bytes of the first input of an annotated collective; None where it was not recorded."""
    try:
        dims, types = json.loads(shapes.dims or b"[]"), json.loads(shapes.types or b"[]")
        size, count = dtype_bytes(types[0]), 1
        for length in dims[0]:
            count *= int(length)
    except (
        ValueError,
        TypeError,
        IndexError,
        KeyError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ):
        return None
    return None if size is None or not 0 <= count < _ABSURD else count * size


def bus_factor(kind: str, ranks: int | None) -> float | None:
    """Bytes each link carries per byte of the collective's size; None where ranks are unknown."""
    if kind in ("broadcast", "send_recv", "reduce"):
        return 1.0
    if ranks is None or ranks < 2:
        return None
    factors = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
    return factors[kind] * (ranks - 1) / ranks if kind in factors else None
