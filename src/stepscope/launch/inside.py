"""What happens in the child before the program: the probe waits for torch, and fixes with it."""

from typing import Any


def begin(options: str) -> None:
    """Called once, before the program's first line. Never raises."""
    from stepscope.probe.boot import boot

    boot(options, _apply)


def _apply(observer: Any) -> None:
    if observer.core.options.fixes:
        from stepscope.fixes.apply import apply

        apply(observer.core.options.fixes, observer.seams)
