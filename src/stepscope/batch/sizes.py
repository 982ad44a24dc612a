"""What is known about each batch size: measurements, their combination, the knee of throughput, and
memory by batch size."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, inf, sqrt
from statistics import fmean
from typing import Final

from msgspec import Struct

from stepscope.record.trial import TrialReason, TrialStatus
from stepscope.stats.intervals import log_means, student_t, within_process_margin


class SizeMeasurement(Struct, frozen=True):
    """One batch size in one process. None: unknown."""

    batch: int
    status: TrialStatus = TrialStatus.OK
    reason: TrialReason | None = None  # None if it is ok
    detail: str | None = None  # details in the program's or the fix's own words
    step_ms: tuple[float, ...] = ()  # steady steps only
    samples_per_step: float = 0.0
    memory_bytes: float | None = None  # the peak: tensors on the GPU, the whole process on the CPU
    energy_j_per_step: float | None = None
    steps: int = 0  # warm-up included
    seconds: float = 0.0  # of the whole process

    @property
    def ok(self) -> bool:
        return self.status is TrialStatus.OK

    @property
    def sample_ms(self) -> tuple[float, ...]:
        """Time of a sample, from each steady step."""
        return tuple(ms / self.samples_per_step for ms in self.step_ms)


class SizeResult(Struct, frozen=True):
    """One batch size over all its processes; the first failure decides."""

    batch: int
    status: TrialStatus
    reason: TrialReason | None
    detail: str | None
    processes: int
    samples_per_s: float | None = None
    low: float | None = None
    """Low end of the 95% interval; None for a single process, which does not show its spread."""
    high: float | None = None
    step_ms: float | None = None
    memory_bytes: float | None = None
    energy_j_per_sample: float | None = None

    @property
    def ok(self) -> bool:
        return self.status is TrialStatus.OK


@dataclass(frozen=True, slots=True)
class ProcessSpread:
    """How much processes of one size differ: a variance of logarithms, and its degrees of freedom.
    Two processes show little; those of all sizes together show enough."""

    variance: float
    degrees: int


def pooled_spread(groups: Iterable[Sequence[SizeMeasurement]]) -> ProcessSpread | None:
    """Over all sizes that ran in several processes; None if none did."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1 and all(one.ok for one in group):
            logs = log_means([one.sample_ms for one in group])
            squares += float(((logs - logs.mean()) ** 2).sum())
            degrees += len(group) - 1
    return ProcessSpread(squares / degrees, degrees) if degrees else None


def combine_processes(
    measured: Sequence[SizeMeasurement], between: ProcessSpread | None = None
) -> SizeResult:
    """A batch size from its processes, at least one; `between` is their spread."""
    first, count = measured[0], len(measured)
    memory = max((one.memory_bytes for one in measured if one.memory_bytes), default=None)
    if failed := next((one for one in measured if not one.ok), None):
        why = (failed.status, failed.reason, failed.detail)
        return SizeResult(first.batch, *why, count, memory_bytes=memory)
    processes = [one.sample_ms for one in measured]
    sample_ms = exp(float(log_means(processes).mean()))
    reach = None
    if count > 1 and between is not None:
        noise = student_t(between.degrees) * sqrt(between.variance / count)
        reach = exp(max(noise, within_process_margin(processes)))
    known = [one for one in measured if one.energy_j_per_step is not None]
    energies = [(one.energy_j_per_step or 0.0) / one.samples_per_step for one in known]
    return SizeResult(
        first.batch,
        TrialStatus.OK,
        None,
        None,
        count,
        samples_per_s=1e3 / sample_ms,
        low=1e3 / sample_ms / reach if reach is not None else None,
        high=1e3 / sample_ms * reach if reach is not None else None,
        step_ms=sample_ms * sum(one.samples_per_step for one in measured) / count,
        memory_bytes=memory,
        energy_j_per_sample=sum(energies) / len(energies) if energies else None,
    )


def with_headroom(
    points: Iterable[SizeResult], memory_bytes: float | None, headroom: float
) -> list[SizeResult]:
    """Sizes that ran and leave this share of memory free, smallest first; unknown memory counts as
    free."""
    most = inf if memory_bytes is None else (1 - headroom) * memory_bytes
    fit = [one for one in points if one.ok and (one.memory_bytes or 0.0) <= most]
    return sorted(fit, key=lambda one: one.batch)


def knee_size(points: Sequence[SizeResult], within: float) -> SizeResult | None:
    """The smallest within this share of the best throughput; None if `points` is empty."""
    best = max((one.samples_per_s or 0.0 for one in points), default=0.0)
    for one in sorted(points, key=lambda one: one.batch):
        if one.samples_per_s and one.samples_per_s >= (1 - within) * best:
            return one
    return None


def still_growing(points: Sequence[SizeResult], within: float) -> bool:
    """Whether the largest beats all smaller ones by more than this share."""
    known = [one.samples_per_s for one in sorted(points, key=lambda one: one.batch)]
    rates = [rate for rate in known if rate]
    return len(rates) > 1 and max(rates[:-1]) < (1 - within) * rates[-1]


def predicted_bytes(points: Iterable[SizeResult], batch: int) -> float | None:
    """Predicted memory of a batch; None if fewer than two sizes were measured. Uses the two
    largest: workspaces vary with size, and the last ones predict the next best."""
    line = _line(points)
    return None if line is None else line[0] + line[1] * batch


def largest_by_memory(points: Iterable[SizeResult], limit_bytes: float) -> int | None:
    """The largest batch predicted to fit; None if memory was not seen to grow."""
    line = _line(points)
    return None if line is None or line[1] <= 0 else int((limit_bytes - line[0]) // line[1])


def _line(points: Iterable[SizeResult]) -> tuple[float, float] | None:
    """Fixed bytes and bytes per sample, neither negative."""
    known = sorted((one.batch, one.memory_bytes) for one in points if one.ok and one.memory_bytes)
    if len(known) < 2:
        return None
    (small, less), (large, more) = known[-2:]
    each = max(0.0, (more - less) / (large - small))
    return more - each * large, each


LEAST_STEPS: Final = 16  # steps of a process: at least half of them are steady


class MeasuredSizes:
    """Every process so far, by batch size."""

    def __init__(self) -> None:
        self._measured: dict[int, list[SizeMeasurement]] = {}

    def add(self, got: SizeMeasurement) -> None:
        self._measured.setdefault(got.batch, []).append(got)

    def of(self, batch: int) -> list[SizeMeasurement]:
        """The processes of one batch size, in order; may be empty."""
        return self._measured.get(batch, [])

    @property
    def points(self) -> list[SizeResult]:
        """The result of each batch size, smallest first."""
        between = pooled_spread(self._measured.values())
        return [combine_processes(found, between) for _, found in sorted(self._measured.items())]

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
        failed = (one.batch for one in self.points if one.status is TrialStatus.OUT_OF_MEMORY)
        return min(failed, default=None)

    def fits(self, batch: int) -> bool:
        """Whether it was measured and ran every time."""
        found = self.of(batch)
        return bool(found) and all(one.ok for one in found)

    def rate(self, batch: int) -> float:
        """Samples per second; 0 if it did not run."""
        found = self.of(batch)
        return (combine_processes(found).samples_per_s or 0.0) if found else 0.0

    def step_ms(self, batch: int) -> float | None:
        """Expected step time, if as fast as the largest that ran; None if none ran."""
        rates = [one.samples_per_s for one in self.points if one.samples_per_s]
        return batch * 1e3 / rates[-1] if rates else None

    def cost_s(self, batch: int) -> float:
        """Expected seconds of a process; 0 if unknown."""
        done = [one for found in self._measured.values() for one in found if one.ok]
        beside = [one.seconds - one.steps * fmean(one.step_ms) / 1e3 for one in done]
        return max([0.0, *beside]) + LEAST_STEPS * (self.step_ms(batch) or 0.0) / 1e3
