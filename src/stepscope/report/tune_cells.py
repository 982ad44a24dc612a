"""The columns of a ladder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.report.text import milliseconds, size

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """A heading, its width (0: the last one, as long as it needs), and what stands below it."""

    heading: str
    width: int
    cell: Callable[[Document], str | None]
    """None where it is not known."""


def _times(name: str) -> Callable[[Document], str | None]:
    return lambda row: times(row[name]) if row.get(name) is not None else None


def times(ratio: float) -> str:
    """`4.9×`; `1.04×` where one digit would say nothing."""
    return f"{ratio:.2f}×" if ratio < 9.995 else f"{ratio:.1f}×"


def _so_far(row: Document) -> str | None:
    return times(row["cumulative"]["speedup"]) if row.get("cumulative") else None


def _number(name: str) -> Callable[[Document], str | None]:
    return lambda row: milliseconds(row[name]) if row.get(name) is not None else None


def _share(row: Document) -> str | None:
    return None if row.get("gpu_busy") is None else f"{row['gpu_busy']:.0%}"


def _memory(row: Document) -> str | None:
    return None if row.get("peak_memory_bytes") is None else size(row["peak_memory_bytes"])


def _energy(row: Document) -> str | None:
    joules = row.get("energy_j_per_sample")
    return None if joules is None else f"{joules:.3g}"


def _proof(row: Document) -> str | None:
    if row["fix"] is None:
        return "baseline"
    return str(row["proof"]["state"]) if row.get("proof") else "not proven"


SPEED = (
    Column("step ms", 8, _number("step_ms")),
    Column("samples/s", 11, _number("samples_per_s")),
    Column("speedup", 9, _times("speedup")),
    Column("so far", 8, _so_far),
    Column("predicted", 11, _times("predicted_speedup")),
    Column("losses", 0, _proof),
)
RESOURCES = (
    Column("GPU busy", 10, _share),
    Column("peak memory", 13, _memory),
    Column("J/sample", 10, _energy),
    Column("cost/1M", 10, _number("cost_per_million")),
)


def used(columns: Sequence[Column], rows: Sequence[Document]) -> list[Column]:
    """Those that have anything to show."""
    return [column for column in columns if any(column.cell(row) is not None for row in rows)]


def cells(columns: Sequence[Column], row: Document) -> Iterator[tuple[Column, str]]:
    """Each column with its text; a dash where a rung could have one and it is not known."""
    for column in columns:
        yield column, column.cell(row) or ("" if row["fix"] is None else "–")
