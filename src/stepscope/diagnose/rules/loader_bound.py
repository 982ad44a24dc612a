"""The step waits for batches, and what makes them is to blame."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.analyze.whatif import changes
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._data import DataWait, data_wait
from stepscope.diagnose.rules._loading import Loading, evidence, loading, parts_of, places
from stepscope.diagnose.rules._text import at, line_of
from stepscope.diagnose.rules._workers import halved, remedy
from stepscope.record.finding import Evidence, Finding

_NAMED = 0.2  # of making a batch: a part that takes less is not the one to blame


def _loader_bound(case: Case) -> Iterable[Finding]:
    """Where batches are made by the training process itself, or by as many workers as cores."""
    how = loading(case)
    if how is not None and data_wait(case, how) is DataWait.SLOW_SAMPLES:
        yield _of_run(case, how)
    elif case.show is None:
        yield from _of_trace(case)


LOADER_BOUND = Rule(
    id="data.loader_bound",
    cause="The step waits for batches, and what makes them is to blame.",
    find=_loader_bound,
    symptoms=("machine.few_cores",),
)


def _of_run(case: Case, how: Loading) -> Finding:
    part = next((one for one in how.parts if one["share"] >= _NAMED), None)
    fix, predicted, kind = remedy(case, how)
    workers = fix.value if fix is not None and fix.name == "workers" else None
    most = ""
    if part is not None:
        place = at(line_of(part)) if part["what"] != "line" else ""  # a line's name is its place
        most = f" {part['share']:.0%} of that is {part['name']}{place}."
        if predicted is None:
            predicted = halved(case, how, part["name"], part["share"])
    alone = "in the training process itself, while nothing is computed"
    many = f"in each of {how.workers} workers, which cannot keep up"
    return Finding(
        id=LOADER_BOUND.id,
        title=f"{how.share:.0%} of the step is waiting for the data loader",
        why=(
            f"A batch takes {in_ms(how.batch_ms)} ms to make, "
            f"{many if how.workers else alone}.{most}"
        ),
        advice=_advice(workers, part),
        share=how.share,
        evidence=(*evidence(how), *parts_of(how)),
        where=places(how, *([part] if part else ())),
        predicted=predicted,
        fix=fix,
        effort="one argument" if workers else "some lines",
        kind=kind,
        confidence="high" if fix is not None else "medium",
    )


def _advice(workers: str | None, part: Mapping[str, Any] | None) -> str:
    cheap = "Make samples cheaper: do once, before training, what is the same each time"
    if part is not None:
        cheap += f"; {part['name']} first"
    if workers:
        return (
            f"Pass num_workers={workers} to the DataLoader: batches are then made while the step"
            f" computes. {cheap}."
        )
    return f"{cheap}; keep finished samples in memory, or on disk in the form they are used in."


def _of_trace(case: Case) -> Iterable[Finding]:
    """A trace alone tells how long the device waited, not for what."""
    trace = case.trace or {}
    wall = (trace.get("breakdown_ns") or {}).get("wall") or 0
    idle = (trace.get("idle_ns") or {}).get("loader")
    if idle is None:
        path = (trace.get("critical_path") or {}).get("by_category") or []
        idle = sum(one["ns"] for one in path if one["category"] == "data loading")
    share = idle / wall if wall else 0.0
    if share < LEAST or case.step_ms <= 0:
        return
    words = "batches are made in workers while the step computes"
    predicted = case.predict(changes.scale_phase("data_wait", 0.0), words=words, doubt=0.3)
    if predicted is None and case.model is None:
        predicted = case.reach(case.step_ms * (1 - share), words=words, doubt=0.4)
    yield Finding(
        id=LOADER_BOUND.id,
        title=f"{share:.0%} of the step is waiting for the data loader",
        why="The loader is asked for a batch and nothing is computed until it comes.",
        advice=(
            "Give the DataLoader more workers (num_workers) and pinned memory; `stepscope run` on"
            " the program tells which transform or line of the dataset takes the time."
        ),
        share=share,
        evidence=(Evidence("waiting for data", share * case.step_ms, "ms a step"),),
        predicted=predicted,
        effort="one argument",
        kind="exact",
        confidence="medium",
    )
