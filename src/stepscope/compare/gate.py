"""What a pipeline is told: a limit for regressions and an exit code."""

from collections.abc import Sequence
from typing import Any, Final

from stepscope.record.errors import UsageError

FINE: Final = 0
REGRESSION: Final = 1
UNCLEAR: Final = 3


def limit(text: str) -> float:
    """`5%` or `0.05`: the share a step may take longer. Raises UsageError."""
    wrong = UsageError(f"--max-regression takes a share such as 5% or 0.05, not {text!r}")
    number, percent, rest = text.strip().partition("%")
    try:
        value = float(number) / (100 if percent else 1)
    except ValueError:
        raise wrong from None
    if rest or not 0 <= value < 1:
        raise wrong
    return value


def exit_code(items: Sequence[dict[str, Any]], most: float | None, strict: bool) -> int:
    """1 where a step certainly takes longer than the limit allows, by the near end of its
    interval; 3 where `strict` and something is unclear."""
    if most is not None and any(item["low"] > most for item in items):
        return REGRESSION
    if strict and any(item["verdict"] == "UNCLEAR" for item in items):
        return UNCLEAR
    return FINE
