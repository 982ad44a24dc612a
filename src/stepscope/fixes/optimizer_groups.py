"""Several batches taken together: which optimizer steps are real, and which are left out."""

from typing import Any
from weakref import WeakSet


class Groups:
    """Where a program is in its present group of `size` batches."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.optimizers: WeakSet[Any] = WeakSet()
        """Those alive. With more than one, gradients of one would leak into steps of another."""
        self._done = 0
        self._off: str | None = None

    @property
    def on(self) -> bool:
        """Whether batches are being gathered at present; may change only between groups."""
        return self._done > 0 or self.misfit() is None

    @property
    def under_way(self) -> bool:
        """Whether gradients of earlier batches of the group are waiting to be used."""
        return self._done > 0

    @property
    def gathering(self) -> bool:
        """Whether the present batch is not the last of its group."""
        return self.on and self._done + 1 < self.size

    def misfit(self) -> str | None:
        """Why batches cannot be gathered; None if they can."""
        if self._off is not None:
            return self._off
        if len(self.optimizers) > 1:
            return "there are several optimizers, whose gradients would mix"
        if any(type(optimizer).__name__ == "LBFGS" for optimizer in self.optimizers):
            return "LBFGS computes the loss several times in a step"
        return None

    def forgotten(self) -> bool:
        """Whether the gradients that wait have gone: the program clears them in its own way."""
        return self.under_way and not any(
            parameter.grad is not None
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def end_batch(self) -> None:
        """A batch of the group has been used; its step was left out, or was the last."""
        self._done = (self._done + 1) % self.size

    def end_group(self) -> None:
        """The next batch begins a group, however this one ended."""
        self._done = 0

    def stop(self, reason: str) -> None:
        """From now on every batch is a step of its own."""
        self._off = reason
        self._done = 0
