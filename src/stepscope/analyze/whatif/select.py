"""Which tasks a change concerns."""

import re
from collections.abc import Callable

import numpy as np

from stepscope.analyze.timeline.categories import CATEGORIES
from stepscope.analyze.whatif.tasks import Did, Tasks
from stepscope.record.rows import STEP_PHASES
from stepscope.record.timeline import Column, DeviceKind

Select = Callable[[Tasks], Column]
"""A bool for each of `tasks.work` or of `tasks.host`."""


def kernels(
    *categories: str, phase: str | None = None, name: str | None = None, operator: str | None = None
) -> Select:
    """Kernels of these categories (none: of all), of a phase, whose own or whose operator's name
    a regular expression finds."""
    numbers = [CATEGORIES.index(category) for category in categories]

    def chosen(tasks: Tasks) -> Column:
        work = tasks.work
        mask: Column = (work.kind == DeviceKind.KERNEL) & ~work.gone
        if numbers:
            mask &= np.isin(work.category, numbers)
        return _narrowed(mask, tasks, work.phase, phase, work.name, name, work.operator, operator)

    return chosen


def copies(direction: str | None = None) -> Select:
    """Copies: "HtoD", "DtoH", "DtoD", or all."""

    def chosen(tasks: Tasks) -> Column:
        work = tasks.work
        mask: Column = (work.kind == DeviceKind.COPY) & ~work.gone
        return mask if direction is None else mask & _named(tasks, work.name, direction)

    return chosen


def host(
    *did: Did, phase: str | None = None, name: str | None = None, operator: str | None = None
) -> Select:
    """Stretches of the host chain: of a kind (none: of all), of a phase, by name or operator."""

    def chosen(tasks: Tasks) -> Column:
        chain = tasks.host
        mask = np.isin(chain.did, did) if did else np.ones(len(chain), bool)
        return _narrowed(
            mask, tasks, chain.phase, phase, chain.name, name, chain.operator, operator
        )

    return chosen


def _narrowed(
    mask: Column, tasks: Tasks, phases: Column, phase: str | None, names: Column, name: str | None,
    operators: Column, operator: str | None,
) -> Column:  # fmt: skip
    if phase is not None:
        mask = mask & (phases == STEP_PHASES.index(phase))
    if name is not None:
        mask = mask & _named(tasks, names, name)
    if operator is not None:
        mask = mask & _named(tasks, operators, operator)
    return mask


def _named(tasks: Tasks, column: Column, pattern: str) -> Column:
    """Whether each entry's name has a match; nameless ones have not."""
    search = re.compile(pattern).search
    passes = np.zeros(len(tasks.names) + 1, bool)
    for index in np.unique(column[column >= 0]).tolist():
        passes[index] = search(tasks.names[index]) is not None
    return passes[column]
