"""The end of workers that are kept: they are told when the program ends."""

import atexit
import os
from typing import Any, Final
from weakref import WeakSet, ref

_told: Final[WeakSet[Any]] = WeakSet()


def end_in_time(iterator: Any) -> None:
    """Torch before 2.13 waits five seconds for each kept worker at the program's end where batches
    are pinned too, and tells none of them. What is registered last is called first."""
    if iterator in _told or not hasattr(iterator, "_shutdown_workers"):
        return
    _told.add(iterator)
    kept, ours = ref(iterator), os.getpid()

    def end() -> None:
        alive = kept()
        if alive is not None and os.getpid() == ours:
            alive._shutdown_workers()

    atexit.register(end)
