"""How many workers to have, and what that is worth."""

from dataclasses import replace

from stepscope.analyze.whatif import changes
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.rules._data import by_chance, epochs
from stepscope.diagnose.rules._loading import Loading
from stepscope.diagnose.rules._text import told
from stepscope.record.finding import FixRef, Predicted

_ENOUGH = 1.03  # of the shortest step there is: fewer workers do as well


def more_workers(case: Case, how: Loading) -> tuple[int, Predicted | None]:
    """The fewest workers that do as well as any number, and the step with them.

    No prediction where they gain nothing, or cannot be more than there are.
    """
    least = max(how.needed, how.workers + 1)
    counts = sorted({count for count in (least, 2 * least, how.most) if count <= how.most})
    found = [(count, with_workers(case, how, count)) for count in counts]
    gaining = [(count, one) for count, one in found if one is not None]
    if not gaining:
        return how.needed, None
    best = min(one.step_ms for _, one in gaining)
    return next((count, one) for count, one in gaining if one.step_ms <= _ENOUGH * best)


def with_workers(case: Case, how: Loading, count: int) -> Predicted | None:
    """The step with so many workers: replayed, else the longer of computing and loading."""
    if case.model is not None:
        found = case.predict(changes.workers(count), words="")
    else:
        found = case.reach(max(_bound_ms(case, how), how.batch_ms / count), words="", doubt=0.3)
    if found is None:
        return None
    some = "a worker" if count == 1 else f"{count} workers"
    gain = in_ms(case.step_ms - found.step_ms)
    return told(found, f"{gain} ms of data wait disappears behind compute with {some}")


def _bound_ms(case: Case, how: Loading) -> float:
    """The least the step takes beside workers: where it computes on their cores, all the work."""
    if case.device != "cpu":
        return how.compute_ms
    switches = ((case.show or {}).get("config") or {}).get("switches") or {}
    threads = min(how.cores, max(1, int(switches.get("threads") or how.cores)))
    return max(how.compute_ms, (threads * how.compute_ms + how.batch_ms) / how.cores)


def cheaper(case: Case, how: Loading, factor: float, words: str) -> Predicted | None:
    """The step where a batch takes `factor` times as long to make."""
    if case.model is not None:
        return case.predict(changes.batch_time(factor), words=words, doubt=0.3)
    left = factor * how.batch_ms / max(1, how.workers)
    after = how.compute_ms + left if not how.workers else max(how.compute_ms, left)
    return case.reach(after, words=words, doubt=0.4)


def cached(case: Case, how: Loading) -> Predicted | None:
    """The step with samples kept after the first epoch; None where that is no choice."""
    rounds = epochs(case)
    named = how.loader["dataset"] == "TensorDataset" or how.loader.get("samples") is None
    if how.workers or rounds < 2 or named or by_chance(case, how):
        return None
    again = float(how.source.get("collate_share") or 0.0)
    factor = again + (1 - again) / rounds
    return cheaper(
        case, how, factor, f"samples of the first of {rounds} epochs serve the later ones"
    )


def remedy(case: Case, how: Loading) -> tuple[FixRef | None, Predicted | None, str]:
    """Workers, or a cache where that gains clearly more; the kind of change."""
    count, hidden = more_workers(case, how)
    kept = cached(case, how)
    if kept is not None and (hidden is None or kept.step_ms < 0.9 * hidden.step_ms):
        return FixRef("cache"), kept, "exact"
    kind = "numeric" if by_chance(case, how) else "exact"
    if hidden is None:
        return None, None, kind
    if not how.workers or count > how.workers:
        return FixRef("workers", str(count)), hidden, kind
    return None, None, kind


def halved(case: Case, how: Loading, name: str, share: float) -> Predicted | None:
    """The step where the costliest part takes half its time."""
    found = cheaper(case, how, 1 - share / 2, f"if {name} took half the time")
    return found and replace(found, low=1.0)
