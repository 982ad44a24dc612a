"""Host time that recording leaves alone, when the rest of its phase is scaled to the bare step."""

import numpy as np

from stepscope.record.timeline import Column
from stepscope.stats.series import Bools, Floats

_LEAST_LEFT = 0.5  # of the time of what recording stretches, whatever it leaves alone


def bare_times(duration: Floats, phase: Column, scale: Floats, fixed: Bools) -> Floats:
    """Recorded stretches as the bare program has them: `scale` of their phase, in each as a whole.

    Those that recording does not stretch (`fixed`) stay as they are, and the others of their phase
    make up for it, down to half their share.
    """
    size = len(scale)
    whole = np.bincount(phase, duration, size)
    kept = np.bincount(phase[fixed], duration[fixed], size)
    rest, aim = whole - kept, scale * whole
    left = np.maximum(aim - kept, _LEAST_LEFT * scale * rest)
    others = np.divide(left, rest, out=scale.copy(), where=rest > 0)
    stays = np.divide(aim - left, kept, out=np.ones(size), where=kept > 0)
    times: Floats = duration * np.where(fixed, stays[phase], others[phase])
    return times
