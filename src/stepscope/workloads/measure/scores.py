"""A training loop's losses, kept on the device until its end, and scores on held-out samples."""

from collections import deque
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from stepscope.workloads.data.tasks import Task
from stepscope.workloads.measure.arithmetic import without_compile
from stepscope.workloads.measure.meter import Meter
from stepscope.workloads.measure.record import Score, TrainMeasured

_MOST = 200
_LAST = 20


class Losses:
    """At most 200 evenly spaced points of the curve, and the last twenty losses."""

    def __init__(self) -> None:
        self._points: list[tuple[int, Any]] = []
        self._apart = 1
        self._last: deque[Any] = deque(maxlen=_LAST)
        self._steps = 0

    def add(self, loss: Any) -> None:
        """Add the next step's loss: a detached scalar, not read yet."""
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
        return float(torch.stack(list(self._last)).float().mean()) if self._last else None

    def curve(self) -> list[tuple[int, float | None]]:
        """(step, loss) from step 1 on; None for a loss that is not finite. Waits for the device."""
        if not self._points:
            return []
        values = torch.stack([loss for _, loss in self._points]).float().tolist()
        return [
            (step, value if isfinite(value) else None)
            for (step, _), value in zip(self._points, values, strict=True)
        ]


class Scores:
    """Scores the test split from time to time, printing a line each time."""

    def __init__(self, task: Task, model: torch.nn.Module, batch: int, device: Any) -> None:
        self._task = task
        self._model = model
        self._batch = batch
        self._device = device
        self._taken: list[Score] = []
        self._rate_from = (0, 0.0)

    @property
    def steps(self) -> int:
        """Steps at the last scoring; 0: never."""
        return self._taken[-1].step if self._taken else 0

    def take(self, meter: Meter, losses: Losses) -> None:
        """Score the current model, while the loop pauses or after it."""
        score, loss = self._score(), losses.lately()
        self._taken.append(Score(meter.all_calls, meter.warm_s + meter.section_s, loss, score))
        parts = [f"step {meter.all_calls}"]
        if loss is not None:
            parts.append(f"loss {loss:.4f}")
        if score is not None:
            parts.append(f"{self._task.score_name} {score:.4f}")
        samples, seconds = meter.samples - self._rate_from[0], meter.section_s - self._rate_from[1]
        if samples and seconds:
            parts.append(f"{samples / seconds:,.1f} samples/s")
        self._rate_from = (meter.samples, meter.section_s)
        print("  ".join(parts), flush=True)

    def reached(self, target: float | None) -> bool:
        last = self._taken[-1].score if self._taken else None
        return target is not None and last is not None and last >= target

    def fill(self, measured: TrainMeasured, target: float | None) -> None:
        """Store the scores; the time to a score excludes scoring."""
        measured.scores, measured.score_name = self._taken, self._task.score_name
        measured.final_score = self._taken[-1].score if self._taken else None
        if self.reached(target):
            measured.time_to_score_s = self._taken[-1].train_s

    def _score(self) -> float | None:
        """The mean over the test split; None if nothing can be scored."""
        if self._task.score_name is None:
            return None
        own = torch.Generator().manual_seed(0)  # keeps the program's random state
        loader = DataLoader(self._task.test, batch_size=self._batch, generator=own)
        sums: list[Tensor] = []
        count = 0
        self._model.eval()
        with torch.no_grad(), without_compile():
            for batch in loader:
                inputs, targets = tree_map_only(Tensor, lambda t: t.to(self._device), batch)
                total, of = self._task.score(self._model(inputs), targets)
                sums.append(total)
                count += of
        self._model.train()
        return float(torch.stack(sums).double().sum()) / count if count else None
