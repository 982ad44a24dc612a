"""This process's counters of the data clock, and the facts that say what each of them means."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepscope.record.rows import CLOCK_COLUMNS
from stepscope.store.facts import Facts
from stepscope.store.table import Table

_WIDTH = len(CLOCK_COLUMNS)


class Slots:
    """A slot is given out as the place of its `total_ns` among the cells."""

    def __init__(self, folder: Path) -> None:
        self._table, self._pid = _new_table(folder)
        self._facts = Facts(folder / "facts.jsonl")
        self.sums: list[float] = []  # of the fetch under way, laid out as the table's cells
        self._told: list[dict[str, Any]] = []
        self._by_key: dict[Any, int] = {}

    def slot(self, key: Any, **meaning: Any) -> int:
        """The slot of this key, told as a fact when it is new."""
        at = self._by_key.get(key)
        if at is None:
            row = len(self._told)
            if row >= self._table.rows:
                self._table.grow()
            self._told.append(meaning)
            self.sums += [0] * _WIDTH
            self._facts.write("clock", pid=self._pid, slot=row, **meaning)
            at = self._by_key[key] = row * _WIDTH + 1
        return at

    def meaning(self, slot: int) -> dict[str, Any]:
        """What was told of a slot."""
        return self._told[slot // _WIDTH]

    def retell(self, slot: int, **more: Any) -> None:
        """More is known of a slot: the latest fact holds."""
        meaning = self.meaning(slot)
        meaning.update(more)
        self._facts.write("clock", pid=self._pid, slot=slot // _WIDTH, **meaning)

    def flush(self, slots: Iterable[int]) -> None:
        """Store what these slots got in the fetch that is over."""
        cells, sums = self._table.cells, self.sums
        for at in slots:
            if total := sums[at]:
                cells[at] += total
                sums[at] = 0
            if count := sums[at - 1]:
                cells[at - 1] += count
                sums[at - 1] = 0

    def mean_ns(self, slot: int) -> float:
        """The slot's time per count so far, at least 1."""
        cells = self._table.cells
        return max(cells[slot], 1) / max(cells[slot - 1], 1)

    def close(self) -> None:
        """Cut the file to size."""
        self._table.close(len(self._told))


def _new_table(folder: Path) -> tuple[Table, int | str]:
    """A table and the pid it is told under; pids come again, so a taken name gets a number."""
    pid = os.getpid()
    for nth in range(1000):
        name = f"{pid}-{nth}" if nth else pid
        try:
            return Table(folder / f"clock-{name}.npy", CLOCK_COLUMNS, chunk_rows=512), name
        except FileExistsError:
            continue
    raise FileExistsError(folder)
