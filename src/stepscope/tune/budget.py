"""How long trials may take together, and what is kept back for the end."""

import re
from collections.abc import Sequence
from typing import Final

from stepscope.record.errors import UsageError
from stepscope.tune.ask import Ask
from stepscope.tune.trial import Run, Trial

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)([smh])")
BUDGET: Final = "budget"
INTERRUPTED: Final = "interrupted"
"""Why a search ended before it was done."""


class BudgetSpent(Exception):  # noqa: N818
    """What is left of the budget does not hold another trial."""


def parse_budget(text: str) -> float:
    """Seconds of "90s", "10m", "1h", "1h30m"; a number alone is seconds. Raises UsageError."""
    words = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", words):
        words += "s"
    parts = _PART.findall(words)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(map("".join, parts)) != words or seconds <= 0:
        raise UsageError(f"--budget {text}: use a time such as 90s, 10m or 1h30m")
    return seconds


class Budget:
    """Counts the trials that pass through it by their own seconds; no clock is looked at, so that
    the same records lead to the same decisions."""

    def __init__(self, run: Run, seconds: float) -> None:
        self._run = run
        self.seconds = seconds
        self.spent = 0.0
        self.asked = 0
        """Trials so far, those of proofs that pass through it included."""

    def __call__(self, ask: Ask) -> Trial:
        trial = self._run(ask)
        self.asked += 1
        self.spent += trial.seconds
        return trial

    @property
    def left(self) -> float:
        """Seconds; less than 0 where the last trial took longer than thought."""
        return self.seconds - self.spent

    def want(self, seconds: float, reserve: float = 0.0) -> None:
        """Raises BudgetSpent where a trial of so many seconds would go into the reserve."""
        if seconds + reserve > self.left:
            raise BudgetSpent


def usual_seconds(trials: Sequence[Trial]) -> float:
    """What one more of these takes: the longest so far, 0 of none."""
    return max((trial.seconds for trial in trials), default=0.0)
