"""Where the host waits for the device, by source line, and what not waiting would gain."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.changes import Change, wait_kind_of
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import (
    per_step,
    place_of_frame,
    place_of_line,
    run_steps,
    with_words,
)
from stepscope.record.finding import Evidence, Finding, FixRef, Place, Predicted

GROUPS: Mapping[str, tuple[str, ...]] = {
    "item": ("item", "bool", "float", "int", "index"),
    "cpu": ("cpu", "numpy", "tolist", "to('cpu')"),
    "nonzero": ("nonzero", "masked_select", "unique"),
    "synchronize": ("synchronize", "Event.synchronize", "Stream.synchronize"),
}
_OPERATORS = (
    ("item", re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal)$")),
    ("nonzero", re.compile(r"^aten::(nonzero|masked_select|_?unique\w*|index|index_put_)$")),
    ("cpu", re.compile(r"^aten::(copy_|_to_copy|to)$")),
)
_PRINTS = re.compile(
    r"\bprint\(|\blog(ger|ging)?\.|\bwandb\.|add_scalar|set_postfix|set_description|\.format\(|\bf['\"]"
)
_MANY_COPIES_BACK = 4.0  # tensors brought back in one step
_RARE_WAIT = 0.1  # a step: at a wait that comes less often the host only lets the device catch up


@dataclass(frozen=True, slots=True)
class Wait:
    """A line (of a trace: an operator) at which the host waits."""

    what: str
    """As `show["syncs"]` has it."""
    ms: float
    """A step; what is lost there now, which other waits may absorb."""
    count: float | None
    """A step; None for a trace alone."""
    place: Place


def _waits(case: Case) -> list[Wait]:
    """All of them but copies to the device, costliest first; empty on the CPU."""
    if case.device != "cuda":
        return []
    found = [wait for wait in run_waits(case) if "copy" not in wait.what and _is_often(wait)]
    recorded = _recorded(case)
    if case.show is not None:  # masks wait inside an operator, where only a recording sees it
        shaped = any(wait.what in GROUPS["nonzero"] for wait in found)
        recorded = [] if shaped else [wait for wait in recorded if wait.what == "nonzero"]
    return sorted([*found, *recorded], key=lambda wait: -wait.ms)


def run_waits(case: Case) -> list[Wait]:
    """What the run counted."""
    count = run_steps(case)
    return [
        Wait(one["what"], one["lost_ms"] / count, one["count"] / count, place_of_line(one))
        for one in (case.show or {}).get("syncs") or ()
        if count
    ]


def waits_by_kind(case: Case) -> dict[str, list[Wait]]:
    """Waits by what the user does there: item, cpu, nonzero, synchronize, print, chatter."""
    found: dict[str, list[Wait]] = {}
    for wait in _waits(case):
        kind = next((name for name, words in GROUPS.items() if wait.what in words), None)
        if kind is not None:
            shown = kind in ("item", "cpu", "nonzero") and _PRINTS.search(_source(case, wait.place))
            found.setdefault("print" if shown else kind, []).append(wait)
    if sum(wait.count or 0.0 for wait in found.get("cpu", ())) >= _MANY_COPIES_BACK:
        found["chatter"] = found.pop("cpu")
    return found


def _recorded(case: Case) -> list[Wait]:
    """What idle time of the device the window gives to synchronisations."""
    devices = (case.trace or {}).get("devices") or []
    found = [
        _wait_of_idle(case, one)
        for device in devices[:1]
        for one in ((device.get("idle") or {}).get("synchronisation") or {}).get("places") or ()
    ]
    return [wait for wait in found if wait.ms > 0]


def _wait_of_idle(case: Case, one: Mapping[str, Any]) -> Wait:
    operator = one.get("operator") or ""
    what = next((name for name, pattern in _OPERATORS if pattern.search(operator)), "synchronize")
    frame = place_of_frame(one.get("where"))
    place = (
        Place(frame.file, frame.line, one.get("operator")) if frame else Place(operator=operator)
    )
    return Wait(what, per_step(case, one.get("total_ns")), None, place)


def _is_often(wait: Wait) -> bool:
    return wait.count is None or wait.count >= _RARE_WAIT


def _source(case: Case, place: Place) -> str:
    return (case.source(place.file, place.line) or "") if place.file and place.line else ""


def predict_without_waits(
    case: Case, some: Sequence[Wait], words: str, besides: Sequence[changes.Change] = ()
) -> Predicted | None:
    """The step without these waits, replayed; None without a window or where nothing is gained.

    `besides` are changes that go with it. The replay knows kinds, not lines: of what a kind gains,
    these lines get their part.
    """
    kinds = {wait_kind_of(wait.what) for wait in some}
    dropped = changes.drop_waits(*sorted({wait.what for wait in some}))
    found = case.predict(dropped, *besides, words="")
    if found is None:
        return None
    ours = sum(wait.ms for wait in some)
    alike = sum(wait.ms for wait in _waits(case) if wait_kind_of(wait.what) in kinds)
    if alike > 0 and ours < 0.98 * alike:
        gained = (case.step_ms - found.step_ms) * ours / alike
        return case.reach(case.step_ms - gained, words=words, doubt=0.3)
    return with_words(found, words)


def is_worth_fixing(case: Case, predicted: Predicted | None, lost_ms: float) -> bool:
    """Whether a wait is a bottleneck: by the replay, else by what is lost there."""
    if case.model is not None:
        return predicted is not None and 1 - 1 / predicted.speedup >= LEAST_GAIN
    return case.step_ms > 0 and lost_ms / case.step_ms >= LEAST_GAIN


def wait_share(case: Case, predicted: Predicted | None, lost_ms: float) -> float:
    """The part of the step a wait concerns: what is lost there, or gained without it."""
    gained = 1 - 1 / predicted.speedup if predicted is not None else 0.0
    return min(1.0, max(gained, lost_ms / case.step_ms))


def wait_evidence(some: Iterable[Wait]) -> tuple[Evidence, ...]:
    """Lines with their counts and times."""
    told_of = []
    for wait in list(some)[:4]:
        name = f".{wait.what}()" if wait.what.isidentifier() else wait.what
        at = f" at line {wait.place.line}" if wait.place.line else ""
        often = f", {wait.count:.3g} times a step" if wait.count is not None else ""
        told_of.append(Evidence(f"waiting in {name}{at}{often}", wait.ms, "ms a step"))
    return tuple(told_of)


def time_lost(some: Iterable[Wait]) -> str:
    """What is lost at some lines, as a sentence has it."""
    return f"{in_ms(sum(wait.ms for wait in some))} ms of each step"


def wait_finding(
    case: Case,
    kind: str,
    *,
    name: str,
    title: str,
    why: str,
    advice: str,
    words: str,
    fix: FixRef | None = None,
    besides: Sequence[Change] = (),
    effort: str = "some lines",
    confidence: str = "high",
) -> Iterable[Finding]:
    """One finding of all waits of a kind, where not waiting gains; `words` say why it would.

    `besides` are changes that go with not waiting.
    """
    some = waits_by_kind(case).get(kind)
    if not some:
        return
    predicted = predict_without_waits(case, some, words, besides)
    lost_ms = sum(wait.ms for wait in some)
    if is_worth_fixing(case, predicted, lost_ms):
        yield Finding(
            id=name,
            title=title,
            why=why,
            advice=advice,
            share=wait_share(case, predicted, lost_ms),
            evidence=wait_evidence(some),
            where=tuple(dict.fromkeys(wait.place for wait in some))[:6],
            predicted=predicted,
            fix=fix,
            effort=effort,
            kind="exact",
            confidence=confidence if case.model is not None else "medium",
        )


def how_often(some: Iterable[Wait]) -> str:
    """How often a step, where it is known: " 3 times a step"."""
    counts = [wait.count for wait in some if wait.count is not None]
    total = sum(counts)
    if not counts:
        return ""
    if total < 0.95:
        return f" every {1 / total:.0f} steps" if total > 0 else ""
    return " in every step" if total < 1.5 else f" {total:.0f} times a step"


_MOVED = re.compile(r"(?P<what>[A-Za-z_][\w.]*)\.(to|cuda)\(")
_LINES_AROUND = 60  # lines before and after


def lines_around(case: Case, place: Place, before: int, after: int) -> Iterator[tuple[int, str]]:
    """The kept lines near a place."""
    if place.file is None or place.line is None:
        return
    for number in range(max(1, place.line - before), place.line + after + 1):
        line = case.source(place.file, number)
        if line is not None:
            yield number, line


def moved_unchanged(case: Case, place: Place) -> str | None:
    """What a line moves to the device though nothing in its loop changes it; None if unsure.

    `weights.to(device)` in a loop that never assigns `weights`, or `self.mask.to(…)` in a method.
    """
    around = dict(lines_around(case, place, _LINES_AROUND, _LINES_AROUND))
    line = around.get(place.line or 0)
    found = _MOVED.search(line) if line is not None else None
    if line is None or found is None:
        return None
    what = found["what"]
    inside = _loop(around, place.line or 0)
    if inside is None:
        return what if what.startswith("self.") and not _assigned(around, what) else None
    return None if _assigned(inside, what) else what


def _loop(around: dict[int, str], at: int) -> dict[int, str] | None:
    """The lines of the innermost loop around a line, its head too; None where no head is kept."""
    depth = _depth(around[at])
    for number in range(at - 1, min(around) - 1, -1):
        line = around.get(number, "")
        if not line.strip() or _depth(line) >= depth:
            continue
        depth = _depth(line)
        word = line.split(None, 1)[0]
        if word in ("def", "async", "class"):
            return None
        if word in ("for", "while"):
            return dict(_block(around, number))
    return None


def _block(around: dict[int, str], head: int) -> Iterator[tuple[int, str]]:
    """A line and those indented below it."""
    for number, line in sorted(around.items()):
        if number > head and line.strip() and _depth(line) <= _depth(around[head]):
            return
        if number >= head:
            yield number, line


def _assigned(lines: dict[int, str], what: str) -> bool:
    """Whether any of these lines may give the name, or what it belongs to, a new value."""
    for name in {what, what.split(".")[0]} - {"self"}:
        word = rf"(?<![\w.]){re.escape(name)}(?!\w)"
        changed = re.compile(
            rf"^[^=(]*{word}(?![.(])[^=(]*(?<![=!<>])=(?!=)"  # assigned, alone or among others
            rf"|\bfor\b[^:]*{word}[^:]*\bin\b|{word}\s*:=|\bas {word}"
            rf"|{word}\.\w+_\(|{word}\[.*\]\s*[-+*/@]?=(?!=)"  # changed in place
        )
        if any(changed.search(line) for line in lines.values()):
            return True
    return False


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())
