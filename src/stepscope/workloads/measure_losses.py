"""Losses of a training loop, kept on the device and read when it is over."""

from collections import deque
from math import isfinite
from typing import Any

_MOST = 200
_LAST = 20


class Losses:
    """At most 200 points of the curve, evenly apart, and the last twenty losses."""

    def __init__(self) -> None:
        self._points: list[tuple[int, Any]] = []
        self._apart = 1
        self._last: deque[Any] = deque(maxlen=_LAST)
        self._steps = 0

    def add(self, loss: Any) -> None:
        """The loss of the next step: a detached scalar, which is not read now."""
        self._steps += 1
        self._last.append(loss)
        if (self._steps - 1) % self._apart:
            return
        if len(self._points) == _MOST:
            self._points = self._points[::2]
            self._apart *= 2
            if (self._steps - 1) % self._apart:
                return
        self._points.append((self._steps, loss))

    def lately(self) -> float | None:
        """The mean of the last losses; None before the first. Waits for the device."""
        import torch

        return float(torch.stack(list(self._last)).float().mean()) if self._last else None

    def curve(self) -> list[list[Any]]:
        """[step, loss] from step 1 on; None for a loss that is no number. Waits for the device."""
        import torch

        if not self._points:
            return []
        values = torch.stack([loss for _, loss in self._points]).float().tolist()
        return [
            [step, value if isfinite(value) else None]
            for (step, _), value in zip(self._points, values, strict=True)
        ]
