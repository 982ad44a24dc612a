"""Pinning batches and moving them early without a GPU: pinned tensors are copies in ordinary
memory, and moves go to the meta device, which every build of torch has."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from fixing import Fixed, fixed

from stepscope.fixes.registry import fix_named


class Side:
    """Copies to the meta device; `taken` are those handed over."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.taken: list[Any] = []
        self.full = False

    def reaches(self, device: Any) -> bool:
        return bool(device.type == "meta")

    def copy(self, tensor: Any, move: Any) -> tuple[Any, None]:
        if self.full:
            raise torch.OutOfMemoryError("out of memory\nmore")
        copied = torch._C.TensorBase.to(tensor, move.device, move.dtype)
        self.made.append((copied, tensor.clone()))
        return copied, None

    def take(self, copied: Any, event: Any) -> Any:
        self.taken.append(next(value for made, value in self.made if made is copied))
        return copied


@contextmanager
def meta_copies(folder: Path, side: Side | None = None) -> Iterator[Fixed]:
    """Prefetching with `side` in place of CUDA's streams."""
    with (
        patch("stepscope.fixes.data.prefetch._CopyStreams", lambda: side or Side()),
        patch.object(fix_named("prefetch"), "needs", None),
        fixed(folder, "prefetch") as run,
    ):
        yield run


@contextmanager
def pinned_copies(folder: Path, name: str) -> Iterator[Fixed]:
    """`pin` or `prefetch`, with loaders that pin."""
    accelerator = {
        "is_available": lambda: True,
        "current_accelerator": lambda: torch.device("cuda"),
        "current_device_index": lambda: 0,
        "set_device_index": lambda index: None,
    }
    with (
        patch.multiple(torch.accelerator, **accelerator),
        patch.object(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor.clone()),
        patch.object(fix_named(name), "needs", None),
        meta_copies(folder) if name == "prefetch" else fixed(folder, name) as run,
    ):
        yield run
