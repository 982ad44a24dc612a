"""The whole run for rules about it: seconds by category, and the lines behind them."""

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.diagnose.case import Case
from stepscope.record.finding import Place


@dataclass(frozen=True, slots=True)
class Spent:
    """What one category took of a run; recording, which is not the program's own, left out."""

    seconds: float
    share: float
    run_s: float
    loop_s: float
    """Steps, evaluation, checkpoints and epoch starts: what goes on as long as the program does."""

    @property
    def of_loop(self) -> float:
        """The share of the loop: what it comes to in a longer run."""
        return self.seconds / self.loop_s if self.loop_s > 0 else 0.0


_LOOP = ("warmup", "training", "inference", "batches", "evaluation", "checkpoint", "epoch_start")


def account(case: Case) -> Mapping[str, float]:
    """Seconds by category; empty for a trace alone."""
    return (case.show or {}).get("account_s") or {}


def spent(case: Case, *categories: str) -> Spent | None:
    """What these took; None where nothing is known of the whole run."""
    seconds = account(case)
    run_s = sum(value for name, value in seconds.items() if name != "window")
    if run_s <= 0:
        return None
    taken = sum(seconds.get(name, 0.0) for name in categories)
    loop_s = sum(seconds.get(name, 0.0) for name in _LOOP)
    return Spent(taken, taken / run_s, run_s, loop_s)


def times(case: Case, what: str) -> int:
    """How often lines that do this were seen to."""
    sites = (case.show or {}).get("sites") or []
    return sum(int(site["count"]) for site in sites if site["what"] == what)


def places(case: Case, category: str) -> tuple[Place, ...]:
    """The line behind a category of the run."""
    known = ((case.show or {}).get("account_places") or {}).get(category) or {}
    return (Place(file=known["file"], line=known["line"]),) if known.get("file") else ()


def steps(case: Case) -> int:
    """All steps of the run."""
    return int(((case.show or {}).get("steps") or {}).get("count") or 0)


def seconds(value: float) -> str:
    """As a sentence has it: "12 s", "3.4 s"."""
    return f"{value:,.0f} s" if value >= 9.95 else f"{value:.1f} s"
