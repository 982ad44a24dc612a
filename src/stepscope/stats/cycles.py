"""Step times that come in bursts."""

from typing import Final

import numpy as np

from stepscope.stats.series import Floats

_LONGEST: Final = 64  # steps
_ALIKE, _BEYOND_NEIGHBOURS = 0.5, 0.2  # correlations


def cycle(values: Floats) -> int:
    """After how many steps the pattern of a series returns, as when each worker of a data loader
    delivers a batch in turn; 1 where there is none, or fewer than four rounds of it."""
    longest = min(_LONGEST, len(values) // 4)
    if longest < 2:
        return 1
    centred = values - values.mean()
    energy = float(centred @ centred)
    if energy <= 1e-18 * float(values @ values):
        return 1
    padded = np.concatenate([np.zeros(longest), centred])
    alike = np.correlate(padded, centred)[longest - 1 :: -1] / energy  # by one step of lag and on
    best = int(np.argmax(alike[1:])) + 1
    # A drift likens every step to its neighbour most; a cycle does not.
    found = alike[best] > max(_ALIKE, alike[0] + _BEYOND_NEIGHBOURS)
    return best + 1 if found else 1
