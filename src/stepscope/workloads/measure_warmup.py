"""When a loop has warmed up: its last calls take as long as those before them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_RECENT, _BEFORE = 5, 10
_LONG_S = 1.0
"""Calls that fill this time are long: fewer of them must do."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How long a warm-up lasts at least, the first call left out, and at most."""

    least_calls: int = 5
    least_s: float = 0.3
    most_calls: int | None = None
    most_s: float = 120.0

    def verdict(self, times_s: Sequence[float], calls: int, seconds: float) -> bool | None:
        """Whether calls have settled; None: go on to find out.

        `times_s` are those of the calls known so far, the first one first; `calls` and `seconds`
        are of all.
        """
        steady = times_s[1:]
        enough = calls >= self.least_calls and sum(steady) >= self.least_s
        full = len(steady) >= _RECENT + _BEFORE or sum(steady) >= _LONG_S
        if enough and full and alike(steady):
            return True
        if seconds >= self.most_s or (self.most_calls is not None and calls >= self.most_calls):
            return alike(steady)
        return None


def alike(times_s: Sequence[float]) -> bool:
    """Whether the last five calls are like the ten before them, within 10%, or up to 30% if those
    differ among themselves; where there are fewer, the last third like the rest."""
    recent = min(_RECENT, max(2, len(times_s) // 3))
    before = times_s[-recent - _BEFORE : -recent]
    if len(before) < 2:
        return False
    usual = median(before)
    spread = median(abs(value - usual) for value in before)
    room = min(0.3 * usual, max(0.1 * usual, 4 * spread))
    return abs(median(times_s[-recent:]) - usual) <= room
