"""Kernel by kernel: what is new, gone, slower and faster, in figures that add up."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from stepscope.compare.matching import match
from stepscope.compare.work import Recorded, Work

_SAME: Final = 0.03  # of its time, as a share, a kernel may change
_SHORTEST: Final = 0.002  # ms a step: no change below is told of as slower or faster


@dataclass(slots=True)
class Row:
    """All work of one name, operator, phase and line; times in ms a step.

    `delta_ms` is `new_ms` − `gone_ms` + what those in both steps changed by.
    """

    name: str
    operator: str | None
    phase: str
    line: str | None
    base_count: int = 0
    other_count: int = 0
    new: int = 0
    gone: int = 0
    base_ms: float = 0.0
    other_ms: float = 0.0
    new_ms: float = 0.0
    gone_ms: float = 0.0

    @property
    def delta_ms(self) -> float:
        return self.other_ms - self.base_ms

    @property
    def change(self) -> str:
        """new, gone, more, fewer, slower, faster or same."""
        if not self.base_count:
            return "new"
        if not self.other_count:
            return "gone"
        if self.base_count != self.other_count:
            return "more" if self.other_count > self.base_count else "fewer"
        if abs(self.delta_ms) <= max(_SHORTEST, _SAME * self.base_ms):
            return "same"
        return "slower" if self.delta_ms > 0 else "faster"


def rows(base: Sequence[Work], other: Sequence[Work]) -> list[Row]:
    """By how much each changed, largest first. Their deltas add up to that of the whole step."""
    found: dict[tuple[str, str | None, str], Row] = {}
    matched = match(base, other)
    for ours, theirs in matched.pairs:
        row = _row(found, other[theirs])
        row.base_count += 1
        row.other_count += 1
        row.base_ms += base[ours].ms
        row.other_ms += other[theirs].ms
    for place in matched.gone:
        row = _row(found, base[place])
        row.base_count += 1
        row.gone += 1
        row.base_ms += base[place].ms
        row.gone_ms += base[place].ms
    for place in matched.new:
        row = _row(found, other[place])
        row.other_count += 1
        row.new += 1
        row.other_ms += other[place].ms
        row.new_ms += other[place].ms
    return sorted(found.values(), key=lambda row: -abs(row.delta_ms))


def _row(found: dict[tuple[str, str | None, str], Row], work: Work) -> Row:
    key = work.name, work.operator, work.phase
    row = found.setdefault(key, Row(*key, work.line))
    row.line = row.line or work.line
    return row


def compared(base: Recorded, other: Recorded) -> dict[str, Any] | None:
    """The table with its sums; None where one side has a device and the other does not."""
    if base.unit != other.unit:
        return None
    found = rows(base.works, other.works)
    return {
        "unit": base.unit,
        "base_count": len(base.works),
        "other_count": len(other.works),
        "base_ms": _total(work.ms for work in base.works),
        "other_ms": _total(work.ms for work in other.works),
        "delta_ms": _total(row.delta_ms for row in found),
        "new": sum(row.new for row in found),
        "gone": sum(row.gone for row in found),
        "rows": [asdict(row) | {"delta_ms": row.delta_ms, "change": row.change} for row in found],
    }


def _total(values: Iterable[float]) -> float:
    return float(sum(values))
