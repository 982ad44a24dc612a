"""Where the host waits for the device, by source line, and what removing the waits would gain."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from msgspec.structs import replace

from stepscope.analyze.replay import changes
from stepscope.analyze.replay.changes import Change, wait_kind_of
from stepscope.diagnose.case import Case, in_ms
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import place_of_frame
from stepscope.record.finding import Confidence, Evidence, Finding, Place, Predicted
from stepscope.record.kinds import HostWait, IdleCause


class WaitGroup(Enum):
    """Waits by the user's action there; each group has its rule."""

    ITEM = auto()
    CPU = auto()
    NONZERO = auto()
    SYNCHRONIZE = auto()
    PRINT = auto()
    MANY_COPIES_BACK = auto()


_GROUPS: Mapping[HostWait, WaitGroup] = {
    HostWait.ITEM: WaitGroup.ITEM,
    HostWait.BOOL: WaitGroup.ITEM,
    HostWait.FLOAT: WaitGroup.ITEM,
    HostWait.INT: WaitGroup.ITEM,
    HostWait.INDEX: WaitGroup.ITEM,
    HostWait.CPU: WaitGroup.CPU,
    HostWait.NUMPY: WaitGroup.CPU,
    HostWait.TOLIST: WaitGroup.CPU,
    HostWait.TO_CPU: WaitGroup.CPU,
    HostWait.NONZERO: WaitGroup.NONZERO,
    HostWait.MASKED_SELECT: WaitGroup.NONZERO,
    HostWait.UNIQUE: WaitGroup.NONZERO,
    HostWait.SYNCHRONIZE: WaitGroup.SYNCHRONIZE,
    HostWait.EVENT_SYNCHRONIZE: WaitGroup.SYNCHRONIZE,
    HostWait.STREAM_SYNCHRONIZE: WaitGroup.SYNCHRONIZE,
}
_SPELLING: Mapping[HostWait, str] = {
    HostWait.BOOL: "bool()",
    HostWait.FLOAT: "float()",
    HostWait.INT: "int()",
    HostWait.INDEX: "an index",
    HostWait.TO_CPU: ".to('cpu')",
    HostWait.SYNCHRONIZE: "torch.cuda.synchronize()",
    HostWait.EVENT_SYNCHRONIZE: "Event.synchronize()",
    HostWait.STREAM_SYNCHRONIZE: "Stream.synchronize()",
    HostWait.PAGEABLE_COPY: "a pageable copy",
    HostWait.PINNED_COPY: "a copy to the GPU",
}
_OPERATORS = (
    (HostWait.ITEM, re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal)$")),
    (HostWait.NONZERO, re.compile(r"^aten::(nonzero|masked_select|_?unique\w*|index|index_put_)$")),
    (HostWait.CPU, re.compile(r"^aten::(copy_|_to_copy|to)$")),
)
_PRINTS = re.compile(
    r"\bprint\(|\blog(ger|ging)?\.|\bwandb\.|add_scalar|set_postfix|set_description|\.format\(|\bf['\"]"
)
_MANY_COPIES_BACK = 4.0  # tensors brought back in one step
_RARE_WAIT = 0.1  # per step: at a rarer wait the host only lets the device catch up


@dataclass(frozen=True, slots=True)
class Wait:
    """A line (of a trace: an operator) at which the host waits."""

    what: HostWait
    ms: float
    """Time lost there per step, which other waits may absorb."""
    count: float | None
    """Per step; None for a trace alone."""
    place: Place


def _waits(case: Case) -> list[Wait]:
    """All waits except copies to the device, costliest first; empty on the CPU."""
    if case.device != "cuda":
        return []
    found = [
        wait
        for wait in of_run(case)
        if wait.what in _GROUPS and (wait.count is None or wait.count >= _RARE_WAIT)
    ]
    recorded = _recorded(case)
    if case.show is not None:  # masks wait inside an operator, visible only to a recording
        shaped = any(_GROUPS[wait.what] is WaitGroup.NONZERO for wait in found)
        recorded = [] if shaped else [w for w in recorded if w.what is HostWait.NONZERO]
    return sorted([*found, *recorded], key=lambda wait: -wait.ms)


def of_run(case: Case) -> list[Wait]:
    """Waits that the run counted."""
    count = case.run_steps
    return [
        Wait(one.what, one.lost_ms / count, one.count / count, Place(one.file, one.line))
        for one in (case.show.syncs if case.show else ())
        if count and one.what is not None
    ]


def grouped(case: Case) -> dict[WaitGroup, list[Wait]]:
    """Waits by the user's action there."""
    found: dict[WaitGroup, list[Wait]] = {}
    for wait in _waits(case):
        group = _GROUPS[wait.what]
        shown = group is not WaitGroup.SYNCHRONIZE and _PRINTS.search(source_line(case, wait.place))
        found.setdefault(WaitGroup.PRINT if shown else group, []).append(wait)
    if sum(wait.count or 0.0 for wait in found.get(WaitGroup.CPU, ())) >= _MANY_COPIES_BACK:
        found[WaitGroup.MANY_COPIES_BACK] = found.pop(WaitGroup.CPU)
    return found


def _recorded(case: Case) -> list[Wait]:
    """The device idle time the window attributes to synchronisations."""
    found = []
    for device in case.trace.devices[:1] if case.trace else ():
        for idle in device.idle[IdleCause.SYNCHRONISATION].places:
            operator, frame = idle.operator or "", place_of_frame(idle.where)
            called = (call for call, pattern in _OPERATORS if pattern.search(operator))
            what = next(called, HostWait.SYNCHRONIZE)
            place = Place(operator=operator)
            if frame is not None:
                place = Place(frame.file, frame.line, idle.operator)
            found.append(Wait(what, case.per_step(idle.total_ns), None, place))
    return [wait for wait in found if wait.ms > 0]


def source_line(case: Case, place: Place) -> str:
    """The user's line at a place, "" if unknown."""
    return (case.source(place.file, place.line) or "") if place.file and place.line else ""


def predict_without(
    case: Case, some: Sequence[Wait], reason: str = "", besides: Sequence[Change] = ()
) -> Predicted | None:
    """The step without these waits, replayed; None without a window or a gain.

    `besides` are accompanying changes. The replay knows kinds, not lines: these lines get their
    share of a kind's gain.
    """
    if not some:
        return None
    kinds = {wait_kind_of(wait.what) for wait in some}
    dropped = changes.drop_waits(*sorted({wait.what for wait in some}))
    found = case.predict(dropped, *besides, reason=reason)
    if found is None:
        return None
    ours = sum(wait.ms for wait in some)
    alike = sum(wait.ms for wait in _waits(case) if wait_kind_of(wait.what) in kinds)
    if alike > 0 and ours < 0.98 * alike:
        gained = (case.step_ms - found.step_ms) * ours / alike
        return case.reach(case.step_ms - gained, reason, doubt=0.3)
    return found


def is_worth_fixing(case: Case, predicted: Predicted | None, lost_ms: float) -> bool:
    """Whether a wait is a bottleneck: by the replay, else by the time lost there."""
    if case.model is not None:
        return predicted is not None and 1 - 1 / predicted.speedup >= LEAST_GAIN
    return case.step_ms > 0 and lost_ms / case.step_ms >= LEAST_GAIN


def share(case: Case, predicted: Predicted | None, lost_ms: float) -> float:
    """A wait's share of the step: the time lost there, or gained without it."""
    gained = 1 - 1 / predicted.speedup if predicted is not None else 0.0
    return min(1.0, max(gained, lost_ms / case.step_ms))


def evidence(some: Iterable[Wait]) -> tuple[Evidence, ...]:
    """The waits' lines with counts and times."""
    found = []
    for wait in list(some)[:4]:
        name = _SPELLING.get(wait.what, f".{wait.what}()")
        at = f" at line {wait.place.line}" if wait.place.line else ""
        often = f", {wait.count:.3g}× per step" if wait.count is not None else ""
        found.append(Evidence(f"wait in {name}{at}{often}", wait.ms, "ms per step"))
    return tuple(found)


def places(some: Iterable[Wait]) -> tuple[Place, ...]:
    """Their lines, costliest first."""
    return tuple(dict.fromkeys(wait.place for wait in some))[:6]


def worth_removing(
    case: Case, some: Sequence[Wait], predicted: Predicted | None, told: Finding
) -> Iterator[Finding]:
    """A finding about these waits if removing them gains; `why` may use {often} and {lost}."""
    lost_ms = sum(wait.ms for wait in some)
    if some and is_worth_fixing(case, predicted, lost_ms):
        yield replace(
            told,
            why=told.why.format(often=_how_often(some), lost=f"{in_ms(lost_ms)} ms per step"),
            share=share(case, predicted, lost_ms),
            evidence=evidence(some),
            where=tuple(dict.fromkeys((*told.where, *places(some)))),
            predicted=predicted,
            confidence=Confidence.HIGH if case.model is not None else Confidence.MEDIUM,
        )


def _how_often(some: Iterable[Wait]) -> str:
    """How often, if known: " 3 times per step"."""
    counts = [wait.count for wait in some if wait.count is not None]
    total = sum(counts)
    if not counts:
        return ""
    if total < 0.95:
        return f" every {1 / total:.0f} steps" if total > 0 else ""
    return " every step" if total < 1.5 else f" {total:.0f} times per step"


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
    """What a line moves to the device although its loop never changes it; None if unsure.

    For example `weights.to(device)` in a loop that never assigns `weights`, or `self.mask.to(…)` in
    a method.
    """
    around = dict(lines_around(case, place, _LINES_AROUND, _LINES_AROUND))
    found = _MOVED.search(around.get(place.line or 0, ""))
    if found is None:
        return None
    inside = _loop(around, place.line or 0)
    if inside is None and not found["what"].startswith("self."):
        return None
    return None if _assigned(inside or around, found["what"]) else found["what"]


def _loop(around: dict[int, str], at: int) -> dict[int, str] | None:
    """The lines of the innermost loop around a line, head included; None if the head was not
    kept."""
    depth = _depth(around[at])
    for number in range(at - 1, min(around) - 1, -1):
        line = around.get(number, "")
        if not line.strip() or _depth(line) >= depth:
            continue
        depth, word = _depth(line), line.split(None, 1)[0]
        if word in ("def", "async", "class"):
            return None
        if word in ("for", "while"):
            inside = {number: line}
            for below in range(number + 1, max(around) + 1):
                text = around.get(below, "")
                if text.strip() and _depth(text) <= depth:
                    break
                inside[below] = text
            return inside
    return None


def _assigned(lines: dict[int, str], what: str) -> bool:
    """Whether any of these lines may assign the name, or the object it belongs to."""
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
