"""Idle time cut into pieces, each with its cause."""

from typing import NamedTuple

import numpy as np

from stepscope.analyze.timeline.intervals import Spans
from stepscope.record.timeline import NOTHING, Column

CAUSES = (
    "loader",
    "host",
    "synchronisation",
    "copy",
    "other_ranks",
    "between_kernels",
    "unknown",
)


class Pieces(NamedTuple):
    """Parts of gaps, in order of time; together they are all the idle time."""

    start: Column
    end: Column
    cause: Column  # an index into CAUSES
    event: Column  # the host event to blame; NOTHING: whatever the host did then


class PieceList:
    """Pieces as they are found."""

    def __init__(self) -> None:
        self._rows: list[tuple[Column, Column, Column, Column]] = []

    def add(self, which: Column, start: Column, end: Column, cause: str, event: Column) -> None:
        """Those rows of the columns that are meant and not empty."""
        rows = np.flatnonzero(which & (end > start))
        code = np.full(len(rows), CAUSES.index(cause))
        self._rows.append((start[rows], end[rows], code, event[rows]))

    def add_spans(self, spans: Spans, cause: str) -> None:
        """Pieces for which whatever the host did then is to blame."""
        every = np.ones(len(spans.start), bool)
        self.add(every, spans.start, spans.end, cause, np.full(len(spans.start), NOTHING))

    def sorted(self) -> Pieces:
        """All of them."""
        start, end, cause, event = (
            np.concatenate(column) for column in zip(*self._rows, strict=True)
        )
        order = np.argsort(start, kind="stable")
        return Pieces(start[order], end[order], cause[order], event[order])
