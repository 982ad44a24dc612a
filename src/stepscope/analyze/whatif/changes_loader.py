"""Changes of how batches are made."""

from collections.abc import Callable
from dataclasses import replace

from stepscope.analyze.whatif.tasks import Tasks


def workers(count: int, *, prefetch: int | None = None) -> Callable[[Tasks], Tasks]:
    """So many worker processes make the batches; 0: the host does it itself.

    No change where no loader is known.
    """

    def change(tasks: Tasks) -> Tasks:
        loader = tasks.loader
        if loader is None:
            return tasks
        ahead = loader.prefetch if prefetch is None else prefetch
        return replace(tasks, loader=replace(loader, workers=count, prefetch=ahead))

    return change


def prefetch(count: int) -> Callable[[Tasks], Tasks]:
    """Each worker keeps so many batches ready."""

    def change(tasks: Tasks) -> Tasks:
        loader = tasks.loader
        return tasks if loader is None else replace(tasks, loader=replace(loader, prefetch=count))

    return change


def batch_time(factor: float) -> Callable[[Tasks], Tasks]:
    """A batch takes `factor` times as long to make: cached samples, cheaper transforms."""

    def change(tasks: Tasks) -> Tasks:
        loader = tasks.loader
        if loader is None:
            return tasks
        return replace(tasks, loader=replace(loader, batch_ms=loader.batch_ms * factor))

    return change


def recycled() -> Callable[[Tasks], Tasks]:
    """Workers hand batches over in memory that was used before."""

    def change(tasks: Tasks) -> Tasks:
        loader = tasks.loader
        return tasks if loader is None else replace(tasks, loader=replace(loader, recycled=True))

    return change


def pinned() -> Callable[[Tasks], Tasks]:
    """A thread takes batches over from workers and pins them."""

    def change(tasks: Tasks) -> Tasks:
        loader = tasks.loader
        return tasks if loader is None else replace(tasks, loader=replace(loader, pinned=True))

    return change
