"""Random draws that follow from the batch alone: whoever makes it, whatever was drawn before.

Workers draw other numbers for a batch than the program's own process would. Held to the batch, both
draw the same, so their steps can be compared one by one; a checksum of every batch tells whether
they are really alike.
"""

import functools
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import torch

from stepscope.probe.batch import leaves
from stepscope.probe.patches import Patches

_LOOKED_AT = 1024  # values of each tensor


class HeldDraws:
    """Of datasets with samples by number. `key` as for `Seeding`."""

    def __init__(self, key: int) -> None:
        self._key = key
        self.batches: list[int | None] = []
        """A checksum of each that the program was given; None where it has none."""

    def install(self, patches: Patches) -> None:
        """Forked workers inherit it."""
        from torch.utils.data._utils.fetch import _MapDatasetFetcher
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        patches.set(_MapDatasetFetcher, "fetch", self._held(_MapDatasetFetcher.fetch))
        patches.set(_BaseDataLoaderIter, "__next__", self._noted(_BaseDataLoaderIter.__next__))

    def _held(self, original: Any) -> Any:
        @functools.wraps(original)
        def fetch(fetcher: Any, index: Any) -> Any:
            with drawn_from(crc32(repr(index).encode(), self._key)):
                return original(fetcher, index)

        return fetch

    def _noted(self, original: Any) -> Any:
        @functools.wraps(original)
        def following(iterator: Any) -> Any:
            batch = original(iterator)
            try:
                self.batches.append(checksum(batch))
            except Exception:
                self.batches.append(None)
            return batch

        return following


@contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """random, numpy and torch begin at a seed, and go on afterwards as if nothing was drawn."""
    module = sys.modules.get("numpy")
    numpy = None if module is None else module.random.mtrand._rand
    before = random.getstate(), torch.default_generator.get_state()
    state = None if numpy is None else numpy.get_state()
    random._inst.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy is not None:
        numpy.seed(seed)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.default_generator.set_state(before[1])
        if numpy is not None:
            numpy.set_state(state)


def checksum(batch: Any) -> int | None:
    """Of some values of each of its tensors and arrays; None of a batch that has none."""
    found = None
    for leaf in leaves(batch):
        tensor = torch.as_tensor(leaf).detach().reshape(-1)
        some = tensor[:: max(1, tensor.numel() // _LOOKED_AT)].cpu().contiguous()
        found = crc32(some.view(torch.uint8).numpy().tobytes(), found or 0)
    return found
