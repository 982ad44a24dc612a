"""Which events have a name that satisfies a test: asked once per distinct name."""

from collections.abc import Callable

import numpy as np

from stepscope.record.timeline import Column, Timeline


def names_that(timeline: Timeline, column: Column, test: Callable[[str], object]) -> Column:
    """For each entry of a name column whether its name passes; nameless ones do not."""
    passes = np.zeros(len(timeline.names) + 1, bool)  # the last stands for NOTHING, which is -1
    passes[column] = True
    for index in np.flatnonzero(passes[:-1]).tolist():
        passes[index] = bool(test(timeline.names[index]))
    passes[-1] = False
    return passes[column]
