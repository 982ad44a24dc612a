"""The blocks a report is made of. They hold values as they are; a renderer escapes text and formats
numbers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Self, TypeVar

from stepscope.record.units import plural

Cell = str | float | int | bool | None
"""None: not known."""


class Tone(StrEnum):
    """How a line is meant; a renderer picks the colour."""

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
    """What is not there, and how to get it: in words, or by a command."""

    what: str
    how: str = ""
    command: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """Lines of code or a command, to be copied."""

    text: str
    language: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values. `brief`: the same in one line of a screen (`63.1 ms per step`)."""

    pairs: tuple[tuple[str, str], ...]
    brief: tuple[str, ...] = ()

    @classmethod
    def known(cls, *pairs: tuple[str, object]) -> Self:
        """Those whose value is not None."""
        return cls(tuple((name, str(value)) for name, value in pairs if value is not None))

    @classmethod
    def headline(cls, *shown: tuple[str, str, str]) -> Self:
        """Of names, values and how a screen tells them in brief; "" where it does not."""
        pairs = tuple((name, value) for name, value, _ in shown)
        return cls(pairs, tuple(brief for _, _, brief in shown if brief))


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column. `unit` stands in its heading; `digits` are significant ones."""

    name: str
    unit: str = ""
    number: bool = False
    digits: int = 3
    percent: bool = False
    """Values are shares, 0 to 1."""
    priority: int = 0
    """A screen too narrow for all columns drops the highest first; 0 is dropped last."""
    clip: bool = False
    """A narrow screen cuts the end off rather than wrap, as of kernel names."""
    bar: bool = False
    """A terminal draws the share as a bar."""

    @classmethod
    def numeric(cls, name: str, unit: str = "", digits: int = 3, priority: int = 0) -> Self:
        """A column of numbers, with so many significant digits."""
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
        """The same in tables of data: `step [ms]`."""
        return f"{self.name} [{self.unit}]" if self.unit else self.name


Record = TypeVar("Record")
Field = tuple[Column, Callable[[Record], Cell]]
"""A column, and what it takes from a record."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that may be sorted and filtered. `id` is unique in a report and names its CSV file."""

    id: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    shown: int = 20
    """Rows a document without scrolling prints; the rest is said to be left out."""
    tones: tuple[Tone, ...] = ()
    """One per row; empty where all are plain."""

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
        """A row for each record."""
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
        """The same, but nothing where there are no records; and without the columns of which
        nothing is known, unless with `empty_columns`."""
        table = cls.of(name, title, records, *fields, shown=shown, tones=tones)
        return [table if empty_columns else table.without_empty_columns()] if table.rows else []

    def without_empty_columns(self) -> Self:
        """With the columns of which anything is known."""
        columns = enumerate(zip(*self.rows, strict=True))
        kept = [at for at, cells in columns if any(cell not in (None, "") for cell in cells)]
        rows = tuple(tuple(row[at] for at in kept) for row in self.rows)
        return replace(self, columns=tuple(self.columns[at] for at in kept), rows=rows)


@dataclass(frozen=True, slots=True)
class Axis:
    """Its title with the unit."""

    title: str = ""
    log: bool = False


class Role(StrEnum):
    """What a series stands for; each has the same colour in every chart of a format."""

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
    """What is told of each point."""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """An interval around each value."""
    line: bool = False
    """A line where the chart's usual form is another, as a ceiling above points."""
    size: Sequence[float] = ()
    """Areas of points, relative."""
    parents: Sequence[str] = ()
    """Of a treemap: the name of each tile's parent; "" for the root."""
    role: Role | None = None
    """None: coloured by its position."""


@dataclass(frozen=True, slots=True)
class Chart:
    """`kind`: bars, stacked, line, scatter, histogram, treemap. `id` is unique in a report.

    stacked: a single bar (or one per x) made of the series; horizontal bars where `across`.
    histogram: bins in Series.x with counts in y, or the values themselves in one of the two.
    The axis `x` is always that of Series.x, also where `across` draws it upright.
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
        """Horizontal bars, side by side where there are several series."""
        return cls(name, "bars", title, series, y=Axis(unit), across=True, note=note)

    @classmethod
    def stacked(cls, name: str, title: str, series: Iterable[Series], unit: str) -> Self:
        """A horizontal bar for each x, made of the series."""
        return cls(name, "stacked", title, tuple(series), y=Axis(unit), across=True)

    @classmethod
    def lines(cls, name: str, title: str, *series: Series, x: str, y: str, note: str = "") -> Self:
        """A line for each series; `x` and `y` are the titles of the axes."""
        return cls(name, "line", title, series, Axis(x), Axis(y), note=note)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """Lines of the user's source around a place, from the snapshot taken at run time."""

    file: str
    first: int
    lines: tuple[str, ...]
    line: int
    """The one that is meant."""

    def numbered(self, mark: str) -> str:
        """Its lines with their numbers, the one that is meant marked."""
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
    """After a tune: what it came to."""
    evidence: tuple[tuple[str, str], ...] = ()
    excerpt: Excerpt | None = None
    edit: tuple[str, ...] = ()
    """The lines as they would be."""
    before: str = ""
    """The line that `edit` replaces; "" where it adds lines."""
    command: str = ""
    """What applies it at run time."""
    at_ns: tuple[int, int] | None = None
    """Its place in the timeline, in the timeline's own nanoseconds."""
    search: str = ""
    """What to look for in the timeline: an operator's or kernel's name."""
    where: str = ""
    """Its places in the code: `train.py:58, :60`."""

    def gains(self) -> list[str]:
        """Predicted and measured, as far as known."""
        known = (("predicted", self.predicted), ("measured", self.measured))
        return [f"{name} {value}" for name, value in known if value]

    def facts(self) -> list[str]:
        """Its effort, and how sure it is."""
        sure = f"{self.confidence} confidence" if self.confidence else ""
        return [fact for fact in (self.effort, sure) if fact]


@dataclass(frozen=True, slots=True)
class TimelineView:
    """The window, zoomable where the format can; `events` of how many."""

    events: int
    trace: str | None
    """The trace file's name beside the report, for Perfetto; None where there is none."""

    @property
    def sentence(self) -> str:
        """Where to see it, for formats that cannot draw it."""
        if self.trace is None:
            return "No timeline."
        return f"{plural(self.events, 'event')} in {self.trace}: open it in Perfetto."


Block = Paragraph | Missing | Code | Facts | Table | Chart | Card | TimelineView


class Weight(IntEnum):
    """How much a section matters: LEAD is on the default screen, Markdown folds DETAIL."""

    LEAD = 0
    BODY = 1
    DETAIL = 2


@dataclass(frozen=True, slots=True)
class Section:
    """`id` is its anchor. Without a title its blocks follow those above."""

    id: str
    title: str
    blocks: tuple[Block, ...]
    weight: Weight = Weight.BODY


@dataclass(frozen=True, slots=True)
class Command:
    """A command worth running next, whole. Commands of one label stand below each other."""

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
    """The command that shows what the short form leaves out."""

    @property
    def blocks(self) -> Iterator["Block"]:
        """Those of all sections, in order."""
        return (block for section in self.sections for block in section.blocks)

    def short(self) -> "Story":
        """The default screen: LEAD sections only; all where none leads."""
        lead = tuple(part for part in self.sections if part.weight is Weight.LEAD)
        return replace(self, sections=lead) if lead else self


def scaled(value: float | None, by: float) -> float | None:
    """In another unit; None stays."""
    return None if value is None else value * by
