"""The blocks of a report. They hold raw values; a renderer escapes text and formats numbers."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Self, TypeVar

from stepscope.record.units import plural

Cell = str | float | int | bool | None
"""None: not known."""


class Tone(StrEnum):
    """The meaning of a line; a renderer picks the colour."""

    PLAIN = "plain"
    GOOD = "good"
    WARN = "warn"
    BAD = "bad"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A sentence or a short paragraph."""

    text: str
    strong: bool = False
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True)
class Missing:
    """Something missing, and how to get it: in words, or by a command."""

    what: str
    how: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code or a command to copy."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values. `brief`: the same for one line of a screen (`63.1 ms per step`)."""

    pairs: tuple[tuple[str, str], ...]
    brief: tuple[str, ...] = ()

    @classmethod
    def known(cls, *pairs: tuple[str, object]) -> Self:
        """Those whose value is not None."""
        return cls(tuple((name, str(value)) for name, value in pairs if value is not None))

    @classmethod
    def headline(cls, *shown: tuple[str, str, str]) -> Self:
        """Facts from (name, value, brief form); "" if a screen leaves it out."""
        pairs = tuple((name, value) for name, value, _ in shown)
        return cls(pairs, tuple(brief for _, _, brief in shown if brief))


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. `unit` goes into its heading; `digits` are significant digits."""

    name: str
    unit: str = ""
    number: bool = False
    digits: int = 3
    percent: bool = False
    """Values are shares, 0 to 1."""
    priority: int = 0
    """On a narrow screen columns with the highest number are dropped first, 0 last."""
    clip: bool = False
    """A narrow screen truncates instead of wrapping, as for kernel names."""
    bar: bool = False
    """A terminal draws the share as a bar."""

    @classmethod
    def numeric(cls, name: str, unit: str = "", digits: int = 3, priority: int = 0) -> Self:
        """A column of numbers with this many significant digits."""
        return cls(name, unit, number=True, digits=digits, priority=priority)

    @classmethod
    def share(cls, name: str, priority: int = 0) -> Self:
        """A column of shares, 0 to 1, shown in percent."""
        return cls(name, number=True, percent=True, priority=priority)

    @property
    def heading(self) -> str:
        """The name with its unit: `step (ms)`."""
        return f"{self.name} ({self.unit})" if self.unit else self.name

    @property
    def data_heading(self) -> str:
        """The same for data tables: `step [ms]`."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


Record = TypeVar("Record")
Field = tuple[Column, Callable[[Record], Cell]]
"""A column, and how to get its value from a record."""


@dataclass(frozen=True, slots=True)
class Table:
    """Sortable, filterable rows. `id` is unique in a report and names its CSV file."""

    id: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    shown: int = 20
    """Rows printed in documents without scrolling; the rest is only counted."""
    tones: tuple[Tone, ...] = ()
    """One per row; empty if all are plain."""

    @classmethod
    def of(
        cls,
        name: str,
        title: str,
        records: Iterable[Record],
        *fields: Field[Record],
        shown: int = 20,
        tones: tuple[Tone, ...] = (),
    ) -> Self:
        """One row per record."""
        rows = tuple(tuple(value(one) for _, value in fields) for one in records)
        return cls(name, tuple(column for column, _ in fields), rows, title, shown, tones)

    @classmethod
    def known(
        cls,
        name: str,
        title: str,
        records: Iterable[Record],
        *fields: Field[Record],
        shown: int = 20,
        tones: tuple[Tone, ...] = (),
        empty_columns: bool = False,
    ) -> list[Self]:
        """The same, or nothing without records; columns without values are dropped unless
        `empty_columns`."""
        table = cls.of(name, title, records, *fields, shown=shown, tones=tones)
        return [table if empty_columns else table.without_empty_columns()] if table.rows else []

    def without_empty_columns(self) -> Self:
        """Without columns that have no values."""
        columns = enumerate(zip(*self.rows, strict=True))
        kept = [at for at, cells in columns if any(cell not in (None, "") for cell in cells)]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis; the title includes the unit."""

    title: str = ""
    log: bool = False


class Role(StrEnum):
    """What a series represents; each has the same colour in all charts of a format."""

    DATA = "data"
    COPY = "copy"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    IDLE = "idle"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Series:
    """One line, set of bars or cloud of points. NaN leaves a gap."""

    name: str
    x: Sequence[Cell]
    y: Sequence[float]
    text: Sequence[str] = ()
    """Text for each point, as on hover."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """An interval around each value."""
    line: bool = False
    """Draw as a line in a chart of another kind, as a ceiling above points."""
    size: Sequence[float] = ()
    """Relative areas of points."""
    parents: Sequence[str] = ()
    """For a treemap: the name of each tile's parent; "" for the root."""
    role: Role | None = None
    """None: coloured by position."""


@dataclass(frozen=True, slots=True)
class Chart:
    """`kind`: bars, stacked, line, scatter, histogram, treemap. `id` is unique in a report.

    stacked: a single bar (or one per x) made of the series; `across`: horizontal bars. histogram:
    bins in Series.x with counts in y, or raw values in one of the two. The axis `x` always belongs
    to Series.x, even if `across` draws it upright.
    """

    id: str
    kind: str
    title: str
    series: tuple[Series, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    across: bool = False
    note: str = ""

    @classmethod
    def bars(cls, name: str, title: str, *series: Series, unit: str, note: str = "") -> Self:
        """Horizontal bars, side by side for several series."""
        return cls(name, "bars", title, series, y=Axis(unit), across=True, note=note)

    @classmethod
    def stacked(cls, name: str, title: str, series: Iterable[Series], unit: str) -> Self:
        """One horizontal bar per x, made of the series."""
        return cls(name, "stacked", title, tuple(series), y=Axis(unit), across=True)

    @classmethod
    def lines(cls, name: str, title: str, *series: Series, x: str, y: str, note: str = "") -> Self:
        """One line per series; `x` and `y` are the axis titles."""
        return cls(name, "line", title, series, Axis(x), Axis(y), note=note)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of the user's source around a place, from the snapshot taken at run time."""

    file: str
    first: int
    lines: tuple[str, ...]
    line: int
    """The relevant line."""

    def numbered(self, mark: str) -> str:
        """Its lines with numbers, the relevant one marked."""
        width = len(str(self.first + len(self.lines)))
        return "\n".join(
            f"{mark if number == self.line else ' '} {number:>{width}}  {line}"
            for number, line in enumerate(self.lines, start=self.first)
        )


@dataclass(frozen=True, slots=True)
class Card:
    """A finding."""

    id: str
    title: str
    kind: str
    """exact, numeric, semantic or none."""
    gain: str
    """`−46.1 ms`, `12% of the run`."""
    why: str
    advice: str
    effort: str
    confidence: str
    predicted: str = ""
    measured: str = ""
    """After a tune: the measured gain."""
    evidence: tuple[tuple[str, str], ...] = ()
    excerpt: Excerpt | None = None
    edit: tuple[str, ...] = ()
    """The lines with the fix."""
    before: str = ""
    """The line that `edit` replaces; "" if it only adds lines."""
    command: str = ""
    """The command that applies it at run time."""
    at_ns: tuple[int, int] | None = None
    """Its place in the timeline, in the timeline's nanoseconds."""
    search: str = ""
    """What to search for in the timeline: an operator's or kernel's name."""
    where: str = ""
    """Its places in the code: `train.py:58, :60`."""

    def gains(self) -> list[str]:
        """Predicted and measured, as far as known."""
        known = (("predicted", self.predicted), ("measured", self.measured))
        return [f"{name} {value}" for name, value in known if value]

    def facts(self) -> list[str]:
        """Its effort and confidence."""
        sure = f"{self.confidence} confidence" if self.confidence else ""
        return [fact for fact in (self.effort, sure) if fact]


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The window, zoomable if the format allows; `events` is its number of events."""

    events: int
    trace: str | None
    """The trace file beside the report, for Perfetto, or None."""

    @property
    def sentence(self) -> str:
        """Where to see it, for formats that cannot draw it."""
        if self.trace is None:
            return "No timeline."
        return f"{plural(self.events, 'event')} in {self.trace}: open it in Perfetto."


Block = Paragraph | Missing | Code | Facts | Table | Chart | Card | TimelineView


class Weight(IntEnum):
    """A section's importance: LEAD is on the default screen, Markdown folds DETAIL."""

    LEAD = 0
    BODY = 1
    DETAIL = 2


@dataclass(frozen=True, slots=True)
class Section:
    """`id` is its anchor. Without a title its blocks continue the section above."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    weight: Weight = Weight.BODY


@dataclass(frozen=True, slots=True)
class Command:
    """A complete command worth running next. Commands with the same label are listed together."""

    text: str
    purpose: str = ""
    label: str = "Next"


@dataclass(frozen=True, slots=True)
class Story:
    """A whole report."""

    title: str = ""
    verdict: str = ""
    """The one sentence at the top."""
    subtitle: str = ""
    """Program, device, versions, date."""
    sections: tuple[Section, ...] = ()
    kind: str = ""
    """run, trace, tune, bench or comparison."""
    next: tuple[Command, ...] = ()
    more: str = ""
    """The command that shows everything the short form leaves out."""

    @property
    def blocks(self) -> Iterator["Block"]:
        """The blocks of all sections, in order."""
        return (block for section in self.sections for block in section.blocks)

    def short(self) -> "Story":
        """The default screen: LEAD sections, or all if there are none."""
        lead = tuple(part for part in self.sections if part.weight is Weight.LEAD)
        return replace(self, sections=lead) if lead else self


def scaled(value: float | None, by: float) -> float | None:
    """A value in another unit; None stays."""
    return None if value is None else value * by
