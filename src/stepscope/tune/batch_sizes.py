"""The batch sizes measured so far, and what they say about one that was not."""

from typing import Final

from stepscope.tune.batch_measured import OUT_OF_MEMORY, Measured, Point, point, spread

LEAST_STEPS: Final = 16
"""Of a process: at least half of them are steady."""


class Sizes:
    """Every process so far, by batch size."""

    def __init__(self) -> None:
        self._measured: dict[int, list[Measured]] = {}

    def add(self, got: Measured) -> None:
        self._measured.setdefault(got.batch, []).append(got)

    def of(self, batch: int) -> list[Measured]:
        """The processes of one batch size, in order; empty where there are none."""
        return self._measured.get(batch, [])

    @property
    def points(self) -> list[Point]:
        """What is known of each batch size, smallest first."""
        between = spread(self._measured.values())
        return [point(found, between) for _, found in sorted(self._measured.items())]

    @property
    def processes(self) -> int:
        return sum(map(len, self._measured.values()))

    @property
    def seconds(self) -> float:
        """Of all processes together."""
        return sum(one.seconds for found in self._measured.values() for one in found)

    @property
    def largest(self) -> int | None:
        """The largest that ran."""
        return max((one.batch for one in self.points if one.ok), default=None)

    @property
    def too_large(self) -> int | None:
        """The smallest that ran out of memory; None if none did."""
        failed = (one.batch for one in self.points if one.status == OUT_OF_MEMORY)
        return min(failed, default=None)

    def fits(self, batch: int) -> bool:
        """Whether it was measured and ran every time."""
        found = self.of(batch)
        return bool(found) and all(one.ok for one in found)

    def rate(self, batch: int) -> float:
        """Samples per second; 0 where it did not run."""
        found = self.of(batch)
        return (point(found).samples_per_s or 0.0) if found else 0.0

    def step_ms(self, batch: int) -> float | None:
        """What a step of it should take, if as fast as the largest that ran; None of none."""
        rates = [one.samples_per_s for one in self.points if one.samples_per_s]
        return batch * 1e3 / rates[-1] if rates else None

    def cost_s(self, batch: int) -> float:
        """Seconds a process of it should take; 0 where nothing tells."""
        done = [one for found in self._measured.values() for one in found if one.ok]
        beside = (one.seconds - one.steps * sum(one.step_ms) / len(one.step_ms) / 1e3
                  for one in done)  # fmt: skip
        return max([0.0, *beside]) + LEAST_STEPS * (self.step_ms(batch) or 0.0) / 1e3
