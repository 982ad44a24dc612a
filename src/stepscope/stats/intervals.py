"""How long a step takes in processes like these, and how well that is known.

Processes of one program differ by more than the steps of each explain: where memory lies, which
algorithm was chosen, how warm the chip was. So a process counts as one observation, its time for
all steps over their number, and a thousand steps of a single process do not replace a second one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Final

import numpy as np

from stepscope.stats.series import Floats, cycle_length

Processes = Sequence[Sequence[float]]  # the steady step times of each process, ms

DEFAULT_NOISE_FLOOR: Final = 0.15  # of a single process: 5% deviation, more than machines showed
FEW_PROCESSES_FLOOR: Final = 0.05  # of one or two, at least: they agree by chance too often
_BLOCKS: Final = (4, 10)  # at least, at most
_DEGREES: Final = np.array([1, 2, 3, 4, 5, 6, 8, 10, 15, 30, 100, 1e9])
_FEW: Final = (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912)
_MANY: Final = (2.306004, 2.228139, 2.131450, 2.042272, 1.983972, 1.959964)
_PLACES, _LOGS = -1 / _DEGREES, np.log(_FEW + _MANY)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean step time in ms, its 95% interval and the number of processes it is from.

    `spread` is the standard deviation between processes as a share, None for a single one.
    """

    value: float
    low: float
    high: float
    processes: int
    spread: float | None


def estimate(processes: Processes, floor: float | None = None) -> Estimate:
    """The mean step time over processes, by Student's t on the logarithms of their means.

    A single process leaves open how much others would differ: `floor` says it (`noise_floor` of
    this machine), or None, where much is assumed; the spread of its blocks comes on top.
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
        raise ValueError("nothing is known without a process")
    if not all(map(len, processes)):
        raise ValueError("a process without step times")
    means = np.array([np.mean(series) for series in processes])
    if not (np.isfinite(means).all() and (means > 0).all()):
        raise ValueError("step times are positive")
    logs: Floats = np.log(means)
    return logs


def noise_margin(floor: float | None, *sides: int) -> float:
    """How far noise moves the mean of so many processes from another's, or from the truth where
    there is one side only: as a logarithm, in 19 cases of 20. None: no floor was measured."""
    fewest = min(sides)
    if floor is None:
        floor = DEFAULT_NOISE_FLOOR if fewest == 1 else 0.0
    if fewest <= 2:
        floor = max(floor, FEW_PROCESSES_FLOOR)
    return float(np.log1p(floor)) * sqrt(sum(1 / side for side in sides) / 2)


def block_means(series: Sequence[float], at_least: int = 16) -> Floats:
    """Means of four to ten blocks of steps that follow each other; fewer only of fewer steps.

    Of `at_least` steps where there are so many, and of whole cycles where steps come in bursts,
    as from the workers of a data loader: half a burst would be a difference that is none.
    """
    times = np.asarray(series, dtype=np.float64)
    period = cycle_length(times)
    cycles = len(times) // period
    least, most = _BLOCKS
    count = min(cycles, max(least, min(most, len(times) // at_least)))
    ends = [cycles * place // max(1, count) * period for place in range(count + 1)]
    return np.array([times[a:b].sum() / (b - a) for a, b in pairwise(ends)])


def within_process_margin(processes: Processes) -> float:
    """How far the mean of these very processes may lie from their own truth, as a share: 95%.

    By their blocks; 0 where no process has two. Processes that agree are not believed beyond it.
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
    """The number of standard errors that hold 95% by Student's t; `degrees` need not be whole."""
    return float(np.exp(np.interp(-1 / degrees, _PLACES, _LOGS)))
