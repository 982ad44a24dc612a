"""Forks of an observed process, such as a DataLoader's workers."""

import gc
import os
from collections.abc import Callable


def watch_forks(forked: Callable[[], None]) -> None:
    """Call `forked` in every forked child, and leave what was garbage in the parent alone there.

    Collecting it would free CUDA memory, which ends a process that CUDA was not started in. Other
    libraries' handlers may run before ours, so collections are held from before the fork.
    """
    held: list[bool] = []  # one for each thread that forks just now

    def hold() -> None:
        held.append(gc.isenabled())
        gc.disable()

    def resume() -> None:
        if held.pop():
            gc.enable()

    def resume_in_child() -> None:
        gc.freeze()
        forked()
        if any(held):
            gc.enable()
        held.clear()

    os.register_at_fork(before=hold, after_in_parent=resume, after_in_child=resume_in_child)
