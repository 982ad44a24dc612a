"""What runs in the child before the program: the probe and the fixes wait for torch."""

from typing import Any


def start_probe(options: str) -> None:
    """Called once, before the program's first line. Never raises."""
    from stepscope.probe.boot import boot

    def apply(observer: Any) -> None:
        if observer.core.options.fixes:
            from stepscope.fixes.apply import apply_fixes

            apply_fixes(observer.core.options.fixes, observer.seams)

    boot(options, apply)
