"""What runs in the child before the program: the probe and the fixes wait for torch."""

from functools import cache
from typing import Any


def start_probe(options: str) -> None:
    """Called once, before the program's first line. Never raises."""
    from stepscope.probe.boot import boot

    boot(options, _prepare)


def _prepare(observer: Any) -> None:
    options = observer.core.options
    if options.fixes:
        from stepscope.fixes.apply import apply_fixes

        apply_fixes(options.fixes, observer.seams)
    if options.check_fixes:
        check_fixes(observer)


def check_fixes(observer: Any) -> None:
    """Have fixes asked whether they would apply, each time the configuration is read. They are
    imported the first time."""

    @cache
    def checks() -> Any:
        from stepscope.fixes.apply import FixChecks

        return FixChecks(observer)

    observer.core.on_config.append(lambda: checks().check())
