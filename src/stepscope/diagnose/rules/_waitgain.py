"""What not waiting for the device is worth."""

from collections.abc import Iterable, Sequence

from stepscope.analyze.whatif import changes
from stepscope.analyze.whatif.changes_host import waited_kind
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._text import told
from stepscope.diagnose.rules._waits import Wait, waits
from stepscope.record.finding import Evidence, Predicted


def gain(
    case: Case, some: Sequence[Wait], words: str, besides: Sequence[changes.Change] = ()
) -> Predicted | None:
    """The step without these waits, replayed; None without a window or where nothing is gained.

    `besides` are changes that go with it. The replay knows kinds, not lines: of what a kind gains,
    these lines get their part.
    """
    kinds = {waited_kind(wait.what) for wait in some}
    dropped = changes.drop_waits(*sorted({wait.what for wait in some}))
    found = case.predict(dropped, *besides, words="")
    if found is None:
        return None
    ours = sum(wait.ms for wait in some)
    alike = sum(wait.ms for wait in waits(case) if waited_kind(wait.what) in kinds)
    if alike > 0 and ours < 0.98 * alike:
        gained = (case.step_ms - found.step_ms) * ours / alike
        return case.reach(case.step_ms - gained, words=words, doubt=0.3)
    return told(found, words)


def matters(case: Case, predicted: Predicted | None, lost_ms: float) -> bool:
    """Whether a wait is a bottleneck: by the replay, else by what is lost there."""
    if case.model is not None:
        return predicted is not None and 1 - 1 / predicted.speedup >= LEAST
    return case.step_ms > 0 and lost_ms / case.step_ms >= LEAST


def share(case: Case, predicted: Predicted | None, lost_ms: float) -> float:
    """The part of the step a wait concerns: what is lost there, or gained without it."""
    gained = 1 - 1 / predicted.speedup if predicted is not None else 0.0
    return min(1.0, max(gained, lost_ms / case.step_ms))


def evidence(some: Iterable[Wait]) -> tuple[Evidence, ...]:
    """Lines with their counts and times."""
    told_of = []
    for wait in list(some)[:4]:
        name = f".{wait.what}()" if wait.what.isidentifier() else wait.what
        at = f" at line {wait.place.line}" if wait.place.line else ""
        often = f", {wait.count:.3g} times a step" if wait.count is not None else ""
        told_of.append(Evidence(f"waiting in {name}{at}{often}", wait.ms, "ms a step"))
    return tuple(told_of)


def lost(some: Iterable[Wait]) -> str:
    """What is lost at some lines, as a sentence has it."""
    return f"{in_ms(sum(wait.ms for wait in some))} ms of each step"
