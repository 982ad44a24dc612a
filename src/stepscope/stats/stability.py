"""Why the step times of a program are unreliable."""

from math import sqrt
from typing import Final

import numpy as np

from stepscope.stats.intervals import Processes, block_means, log_means, student_t
from stepscope.stats.series import Floats, find_spikes

BETWEEN_PROCESSES: Final = 0.03  # standard deviation, as a share; the rest are shares too
BETWEEN_HALVES: Final = 0.05
BETWEEN_BLOCKS: Final = 0.05
_FEW: Final = 0.02  # of the steps: so few long ones are reported instead of their blocks


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
    if 0 < len(long) <= max(1, _FEW * len(values)):
        most = long[0].value / float(np.median(values))
        upto = "up to " if len(long) > 1 else ""
        return f"{len(long)} of {len(values)} steps {upto}{most:.1f}× slower than typical"
    return f"blocks vary by {share:.0%}"
