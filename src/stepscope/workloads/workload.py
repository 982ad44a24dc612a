"""What a workload is: a model, what it is fed, and how it is trained by default."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """A model by name. `make` is module:function in a child; size is in pixels, length in tokens or
    characters of a sample. None: it has no such thing, or only building the model can tell.
    """

    name: str
    about: str
    task: str
    make: str
    options: Mapping[str, Any] = field(default_factory=dict)
    modes: tuple[str, ...] = ("train", "infer")
    size: int | None = None
    classes: int | None = None
    length: int | None = None
    vocabulary: int | None = None
    batch: int = 32
    optimizer: str = "adamw"
    lr: float = 1e-3
    parameters: int | None = None
