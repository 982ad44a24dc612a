"""How long a loop goes on, and how many calls of it that will be."""

from dataclasses import dataclass
from math import ceil

from stepscope.workloads.measure_warmup import Rule

_MOST_PLANNED = 100_000
_WARM_SHARE = 0.4
_SHORTEST_S = 1e-6


@dataclass(frozen=True, slots=True)
class Limits:
    """When a loop has gone on for long enough. None: not limited by it."""

    calls: int | None = None
    """All in all if `within`, else in the section."""
    seconds: float | None = None
    """Of the section."""
    least: int = 10
    """Calls of the section, where seconds are the limit."""
    within: bool = True
    """Whether the warm-up is a part of `calls`, as in training: then it takes 40% at most."""

    def reached(self, calls: int, seconds: float, warm_calls: int = 0) -> bool:
        """Whether a section of so many calls and seconds is enough, after a warm-up."""
        made = calls + warm_calls if self.within else calls
        if self.calls is not None and made >= self.calls:
            return True
        return self.seconds is not None and calls >= self.least and seconds >= self.seconds

    def warm(self, rule: Rule) -> Rule | None:
        """The rule, kept short where the warm-up is a part of the calls; None: there is none."""
        if self.calls is None or not self.within:
            return rule
        most = int(_WARM_SHARE * self.calls)
        return Rule(rule.least_calls, rule.least_s, most, rule.most_s) if most else None

    def planned(self, calls: int, usual_s: float, seconds: float) -> int:
        """Calls of the section all in all, if it has some and goes on for so many seconds."""
        more = max(1, self.least - calls, ceil(seconds / max(usual_s, _SHORTEST_S)))
        return calls + min(_MOST_PLANNED, more)
