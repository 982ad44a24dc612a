"""Buffers that a block changes as it runs: running it again must neither see nor repeat that."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary


class Buffers:
    """Which buffers of which blocks change, learnt at a block's first run."""

    def __init__(self) -> None:
        self._changing: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()

    def before(self, block: Any) -> dict[str, Any]:
        """What buffers hold before a run, as far as its result depends on it.

        That of a BatchNorm in training does not depend on the running statistics.
        """
        known = self._changing.get(block)
        names = dict(block.named_buffers()) if known is None else known
        skipped = _statistics(block)
        return {name: block.get_buffer(name).clone() for name in names if name not in skipped}

    def learn(self, block: Any, versions: dict[str, int]) -> None:
        """After the first run: those whose version has gone up changed."""
        if block not in self._changing:
            self._changing[block] = [
                name for name, buffer in block.named_buffers() if buffer._version != versions[name]
            ]

    def versions(self, block: Any) -> dict[str, int]:
        """How often each buffer has been changed so far; empty once that is of no interest."""
        if block in self._changing:
            return {}
        return {name: buffer._version for name, buffer in block.named_buffers()}

    def again(self, block: Any, before: dict[str, Any]) -> AbstractContextManager[None]:
        """Around the second run: buffers as they were before the first, then as they are now."""
        changing = [*self._changing.get(block, ()), *_statistics(block)]
        return _swapped(block, dict.fromkeys(changing), before) if changing else nullcontext()


@contextmanager
def _swapped(block: Any, names: dict[str, None], before: dict[str, Any]) -> Iterator[None]:
    now = {name: block.get_buffer(name).clone() for name in names}
    for name in now.keys() & before.keys():
        block.get_buffer(name).data.copy_(before[name])  # unseen by autograd
    try:
        yield
    finally:
        for name, value in now.items():
            block.get_buffer(name).data.copy_(value)


def _statistics(block: Any) -> list[str]:
    """Names of the running statistics of normalisations in training, which have a counter."""
    return [
        f"{name}.{buffer}" if name else buffer
        for name, module in block.named_modules()
        if module.training and getattr(module, "num_batches_tracked", None) is not None
        for buffer in ("running_mean", "running_var", "num_batches_tracked")
    ]
