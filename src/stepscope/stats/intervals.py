"""How long a step takes in processes like these, how certain that is, and why it may not be.

Processes of one program differ by more than the scatter of their steps: in memory placement, chosen
algorithms, chip temperature. So each process is one observation, its total step time over its
number of steps, and a thousand steps of one process do not replace a second process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Final

import numpy as np

from stepscope.stats.series import Floats, cycle_length, find_spikes

Processes = Sequence[Sequence[float]]  # the steady step times of each process, ms

DEFAULT_NOISE_FLOOR: Final = 0.15  # of a single process: 5% deviation, more than any machine showed
FEW_PROCESSES_FLOOR: Final = 0.05  # minimum for one or two: they agree by chance too often
_BLOCKS: Final = (4, 10)  # at least, at most
_BLOCK_STEPS: Final = 16  # where there are enough
_DEGREES: Final = np.array([1, 2, 3, 4, 5, 6, 8, 10, 15, 30, 100, 1e9])
_FEW: Final = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912)
_MANY: Final = (2.306004, 2.228139, 2.131450, 2.042272, 1.983972, 1.959964)
_PLACES, _LOGS = -1 / _DEGREES, np.log(_FEW + _MANY)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean step time in ms, its 95% interval and the number of processes behind it.

    `spread` is the standard deviation between processes as a share, None for a single one.
    """

    value: float
    low: float
    high: float
    processes: int
    spread: float | None


def estimate(processes: Processes, floor: float | None = None) -> Estimate:
    """The mean step time over processes, by Student's t on the logarithms of their means.

    One process cannot show how much others differ. `floor` (this machine's `noise_floor`) stands
    in; None assumes a large one. The spread between its blocks is added.
    """
    logs = log_means(processes)
    count, middle, within = len(logs), float(logs.mean()), within_process_margin(processes)
    spread = None
    if count == 1:
        reach = float(np.hypot(noise_margin(floor, 1), within))
    else:
        deviation = float(logs.std(ddof=1))
        reach = max(student_t(count - 1) * deviation / sqrt(count), within)
        spread = float(np.expm1(deviation))
    value, low, high = (float(np.exp(at)) for at in (middle, middle - reach, middle + reach))
    return Estimate(value, low, high, count, spread)


def log_means(processes: Processes) -> Floats:
    """The logarithm of each process's mean step time."""
    if not len(processes):
        raise ValueError("no process was measured")
    if not all(map(len, processes)):
        raise ValueError("a process has no step times")
    means = np.array([np.mean(series) for series in processes])
    if not (np.isfinite(means).all() and (means > 0).all()):
        raise ValueError("step times must be positive")
    logs: Floats = np.log(means)
    return logs


def noise_margin(floor: float | None, *sides: int) -> float:
    """How far noise separates the means of two sides of so many processes, or one side's mean from
    the truth, 19 times of 20, as a logarithm. `floor` None: not measured."""
    fewest = min(sides)
    if floor is None:
        floor = DEFAULT_NOISE_FLOOR if fewest == 1 else 0.0
    if fewest <= 2:
        floor = max(floor, FEW_PROCESSES_FLOOR)
    return float(np.log1p(floor)) * sqrt(sum(1 / side for side in sides) / 2)


def block_means(series: Sequence[float]) -> Floats:
    """Means of four to ten consecutive blocks of steps, fewer if there are few steps.

    A block has 16 steps or more where possible and covers whole cycles if steps come in bursts, as
    from loader workers: half a burst would look like a difference.
    """
    times = np.asarray(series, dtype=np.float64)
    period = cycle_length(times)
    cycles = len(times) // period
    least, most = _BLOCKS
    count = min(cycles, max(least, min(most, len(times) // _BLOCK_STEPS)))
    ends = [cycles * place // max(1, count) * period for place in range(count + 1)]
    return np.array([times[a:b].sum() / (b - a) for a, b in pairwise(ends)])


def within_process_margin(processes: Processes) -> float:
    """The 95% margin of the processes' own mean as a share, from their blocks; 0 if no process has
    two. Agreement between processes never claims a smaller margin.
    """
    parts = [block_means(series) for series in processes]
    degrees = sum(len(part) - 1 for part in parts)
    if not degrees:
        return 0.0
    squares = sum(
        float(part.var(ddof=1) / part.mean() ** 2) / len(part) for part in parts if len(part) > 1
    )
    return student_t(degrees) * sqrt(squares) / len(processes)


def student_t(degrees: float) -> float:
    """How many standard errors cover 95% by Student's t; `degrees` need not be whole."""
    return float(np.exp(np.interp(-1 / degrees, _PLACES, _LOGS)))


BETWEEN_PROCESSES: Final = 0.03  # standard deviation, as a share; the rest are shares too
BETWEEN_HALVES: Final = 0.05
BETWEEN_BLOCKS: Final = 0.05
_FEW_LONG: Final = 0.02  # of the steps: so few long ones are reported instead of their blocks


def why_unstable(times: Processes) -> str | None:
    """What is wrong with the steady step times of one or several processes.

    None if nothing is, or if a series is too short to tell.
    """
    if len(times) > 1:
        logs = log_means(times)
        if float(logs.std(ddof=1)) > BETWEEN_PROCESSES:
            return f"processes differ by {np.expm1(logs.max() - logs.min()):.0%}"
    for place, series in enumerate(times, start=1):
        if why := _series(np.asarray(series, dtype=np.float64)):
            return why if len(times) == 1 else f"{why}, in process {place} of {len(times)}"
    return None


def _series(values: Floats) -> str | None:
    means = block_means([*values])
    if len(means) < 4 or values.mean() <= 0:
        return None
    # Each half by its median block, which a single long step does not move.
    half = len(means) // 2
    first, second = means[:half], means[-half:]
    change = float(np.median(second) / np.median(first)) - 1
    error = float(np.hypot(first.std(ddof=1), second.std(ddof=1))) / sqrt(half)
    clear = abs(float(second.mean() - first.mean())) > student_t(2 * half - 2) * error
    if abs(change) > BETWEEN_HALVES and clear:
        word = "slower" if change > 0 else "faster"
        return f"the second half is {abs(change):.0%} {word} than the first"
    share = float(means.std(ddof=1) / means.mean())
    if share <= BETWEEN_BLOCKS:
        return None
    long = find_spikes(values)
    if 0 < len(long) <= max(1, _FEW_LONG * len(values)):
        most = long[0].value / float(np.median(values))
        upto = "up to " if len(long) > 1 else ""
        return f"{len(long)} of {len(values)} steps {upto}{most:.1f}× slower than typical"
    return f"blocks vary by {share:.0%}"
