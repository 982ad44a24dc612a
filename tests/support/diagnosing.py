"""Cases and findings made by hand."""

from dataclasses import dataclass

from documents import made
from msgspec import UNSET

from stepscope.analyze.run.document import RunSummary
from stepscope.analyze.timeline.document import TraceAnalysis
from stepscope.diagnose.case import Case
from stepscope.record.finding import ChangeKind, Confidence, Effort, Finding, Predicted, Scope


@dataclass(frozen=True)
class Replayed:
    step_ms: float


class Parts:
    """A model whose step is a sum of named parts; a change takes one of them away."""

    error = 0.02

    def __init__(self, **parts: float) -> None:
        self.parts = parts
        self.step_ms = sum(parts.values())

    def replay(self, *changes: str) -> Replayed:
        return Replayed(sum(ms for name, ms in self.parts.items() if name not in changes))

    def host_share(self, chosen: object) -> float:
        return 1.0


def case(step_ms=100.0, device="cpu", show=None, trace=None, **more) -> Case:
    """`show` and `trace` may be partial."""
    run = None if show is None else made(RunSummary, show)
    window = None if trace is None else made(TraceAnalysis, trace)
    return Case(step_ms=step_ms, device=device, cores=4.0, show=run, trace=window, **more)


def finding(name, step_ms=None, *, now=100.0, changes=(), **more) -> Finding:
    """One that would bring a step of 100 ms to `step_ms`; None: nothing is predicted."""
    predicted = None
    if step_ms is not None:
        speedup = now / step_ms
        predicted = Predicted(
            step_ms,
            speedup,
            1 + 0.9 * (speedup - 1),
            1.1 * speedup,
            f"{name} goes away",
            tuple(changes) or UNSET,
        )
    given = {"title": f"About {name}", "why": "Because.", "advice": "Change it.", "share": 0.3}
    words = {"effort": Effort, "kind": ChangeKind, "confidence": Confidence, "scope": Scope}
    typed = {key: words[key](value) if key in words else value for key, value in more.items()}
    return Finding(id=name, predicted=predicted, **(given | typed))
