"""Fixes in the program's process: put in place once torch is there, and asked when it fails."""

import sys
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

from stepscope.fixes.base import Fix, FixContext
from stepscope.fixes.inspect.user_code import raise_location
from stepscope.fixes.registry import parse_fixes
from stepscope.probe.points.seams import Seams


def apply_fixes(asked: Iterable[str], seams: Seams) -> None:
    """Have every fix take hold. One that cannot says so; the program runs without it."""
    placed: list[tuple[Fix, FixContext]] = []
    for fix, value in parse_fixes(asked):
        hands = FixContext(fix, value, seams)
        seams.core.facts.write("fix", name=fix.name, state="asked", value=value, text=fix.missing)
        try:
            fix.install(value, hands)
        except Exception as problem:
            hands.unfit(f"it could not be put in place: {problem!r}")
            continue
        placed.append((fix, hands))
    _explain_failures(placed, seams)


def _explain_failures(placed: list[tuple[Fix, FixContext]], seams: Seams) -> None:
    """Have an exception that is a fix's doing end the program in one line that says so."""

    def hook(
        call: Callable[..., Any],
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        where, line = raise_location(trace)
        for fix, hands in placed:
            reason = _reason(fix, error, line)
            if reason is not None:
                text = f"{reason} (at {where})" if where and where not in reason else reason
                hands.broke(text)
                print(f"stepscope: {fix.name}: {text}", file=sys.stderr)
                return
        call(kind, error, trace)

    seams.around(sys, "excepthook", hook)


def _reason(fix: Fix, error: BaseException, line: str) -> str | None:
    try:
        return fix.explain(error, line)
    except Exception:
        return None
