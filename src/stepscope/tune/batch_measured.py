"""What is known of a batch size: from one process, and from all that measured it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, sqrt

from stepscope.stats.intervals import log_means, student, within
from stepscope.tune.trial import OK

OUT_OF_MEMORY = "out_of_memory"
TOO_SHORT = "too_short"
NOT_APPLICABLE = "not_applicable"


@dataclass(frozen=True, slots=True)
class Measured:
    """One batch size in one process. None: not known."""

    batch: int
    status: str = OK
    """One of a trial's, or too_short: the program ended before its speed showed."""
    why: str | None = None
    """One line for every status but ok."""
    step_ms: tuple[float, ...] = ()
    """Steady steps only."""
    samples_per_step: float = 0.0
    memory_bytes: float | None = None
    """The most it held: on the GPU for tensors, on the CPU in all."""
    energy_j_per_step: float | None = None
    steps: int = 0
    """Warm-up included."""
    seconds: float = 0.0
    """Of the whole process."""

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def sample_ms(self) -> tuple[float, ...]:
        """Time of a sample, from each steady step."""
        return tuple(ms / self.samples_per_step for ms in self.step_ms)


@dataclass(frozen=True, slots=True)
class Point:
    """One batch size in all its processes; the first that failed speaks for all."""

    batch: int
    status: str
    why: str | None
    processes: int
    samples_per_s: float | None = None
    low: float | None = None
    """Of the 95% interval; None from a single process, which does not show its spread."""
    high: float | None = None
    step_ms: float | None = None
    memory_bytes: float | None = None
    energy_j_per_sample: float | None = None

    @property
    def ok(self) -> bool:
        return self.status == OK


@dataclass(frozen=True, slots=True)
class Spread:
    """How far processes of one size lie apart: a variance of logarithms, and how well it is known.

    Two processes alone hardly tell; those of all sizes together do.
    """

    variance: float
    degrees: int


def spread(groups: Iterable[Sequence[Measured]]) -> Spread | None:
    """Over all sizes that ran in several processes; None where none did."""
    squares, degrees = 0.0, 0
    for group in groups:
        if len(group) > 1 and all(one.ok for one in group):
            logs = log_means([one.sample_ms for one in group])
            squares += float(((logs - logs.mean()) ** 2).sum())
            degrees += len(group) - 1
    return Spread(squares / degrees, degrees) if degrees else None


def point(measured: Sequence[Measured], between: Spread | None = None) -> Point:
    """A batch size from its processes, of which there is at least one; `between` is `spread`."""
    first, count = measured[0], len(measured)
    memory = max((one.memory_bytes for one in measured if one.memory_bytes), default=None)
    for one in measured:
        if not one.ok:
            return Point(first.batch, one.status, one.why, count, memory_bytes=memory)
    processes = [one.sample_ms for one in measured]
    sample_ms = exp(float(log_means(processes).mean()))
    reach = None
    if count > 1 and between is not None:
        noise = student(between.degrees) * sqrt(between.variance / count)
        reach = exp(max(noise, within(processes)))
    energies = [
        one.energy_j_per_step / one.samples_per_step
        for one in measured
        if one.energy_j_per_step is not None
    ]
    return Point(
        first.batch,
        OK,
        None,
        count,
        samples_per_s=1e3 / sample_ms,
        low=1e3 / sample_ms / reach if reach is not None else None,
        high=1e3 / sample_ms * reach if reach is not None else None,
        step_ms=sample_ms * sum(one.samples_per_step for one in measured) / count,
        memory_bytes=memory,
        energy_j_per_sample=sum(energies) / len(energies) if energies else None,
    )
