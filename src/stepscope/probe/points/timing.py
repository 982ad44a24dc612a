"""What most points do: make a call inside a phase, and note the line it came from."""

from collections.abc import Callable
from typing import Any

from stepscope.probe.core import Core
from stepscope.probe.log import BACKWARD, OPTIMIZER

Call = Callable[..., Any]
_EVERY_STEP = frozenset((BACKWARD, OPTIMIZER))


def timed(
    core: Core, phase: int, what: str, call: Callable[..., Any], args: Any, kwargs: Any
) -> Any:
    """Make a call as part of a phase; `what` names the kind of site."""
    log = core.log
    begun = log.enter(phase)
    if not begun:
        return call(*args, **kwargs)
    try:
        return call(*args, **kwargs)
    except BaseException as error:
        leave_out(error)
        raise
    finally:
        now = log.leave()
        if core.look or phase not in _EVERY_STEP:
            note(core, what, now - begun)


def note(core: Core, what: str, elapsed_ns: int) -> None:
    """Count an occurrence at the user's line that led here."""
    try:
        core.sites.add(core.sites.here(what), elapsed_ns)
    except Exception as problem:
        core.guard(problem)


def leave_out(error: BaseException) -> None:
    """Take the caller's frame out of a traceback, so that the program's own is all one sees.

    From Python 3.11 on, a bare `raise` after it does not put the frame back.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
