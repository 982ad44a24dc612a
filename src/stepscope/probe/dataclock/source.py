"""The counters of one dataset's fetches in this process, and the facts that say what each slot
means. Datasets that share innermost class and transform classes are one source.
"""

import itertools
import os
import weakref
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.probe.dataclock.dataset import (
    DatasetOrigin,
    construction_lines,
    definition_line,
    is_user_file,
    traceable_files,
)
from stepscope.record.facts import ClockFact, PlaceKind, SlotKind
from stepscope.record.kinds import SampleWork
from stepscope.record.row_log import CLOCK_COLUMNS
from stepscope.store.json_lines import FactLog
from stepscope.store.table import Table

_WIDTH = len(CLOCK_COLUMNS)


class SlotTable:
    """A slot is given out as the place of its `total_ns` among the cells."""

    def __init__(self, folder: Path) -> None:
        self._pid: int | str = os.getpid()  # as facts name it; pids recur: a taken one is numbered
        for nth in itertools.count(1):
            path = folder / f"clock-{self._pid}.npy"
            try:
                self._table = Table(path, CLOCK_COLUMNS, chunk_rows=512)
                break
            except FileExistsError:
                self._pid = f"{os.getpid()}-{nth}"
        self._facts = FactLog(folder / "facts.jsonl")
        self.sums: list[float] = []  # of the fetch under way, laid out as the table's cells
        self._told: list[ClockFact] = []
        self._by_key: dict[Any, int] = {}

    def slot(self, key: Any, **meaning: Any) -> int:
        """The slot of this key, told as a fact when it is new."""
        at = self._by_key.get(key)
        if at is None:
            row = len(self._told)
            if row >= self._table.rows:
                self._table.grow()
            fact = ClockFact(pid=self._pid, slot=row, **meaning)
            self._told.append(fact)
            self.sums += [0] * _WIDTH
            self._facts.write(fact)
            at = self._by_key[key] = row * _WIDTH + 1
        return at

    def meaning(self, slot: int) -> ClockFact:
        return self._told[slot // _WIDTH]

    def place(self, slot: int, file: str, line: int, place: PlaceKind) -> None:
        """A slot's source line has become known: the latest fact holds."""
        fact = self.meaning(slot)
        fact.file, fact.line, fact.place = file, line, place
        self._facts.write(fact)

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
        self._table.close(len(self._told))
        self._facts.close()


_FIRST_UNTRACED = 1  # fetches before the first one followed line by line
_MIN_GAP, _MAX_GAP = 16, 4096  # fetches from one followed to the next
_TRACE_COST = 0.005  # of the fetch time, at most, for following lines
_MAX_LINES = 1000


class FetchSource:
    """Where the time of a dataset's fetches is put."""

    def __init__(
        self, slots: SlotTable, found: DatasetOrigin, transforms: list[Any], fetcher: Any
    ) -> None:
        from torch.utils.data import get_worker_info

        info = get_worker_info()
        self._worker = None if info is None else int(info.id)
        self.slots = slots
        self._names = [type(t).__name__ for t in transforms]
        self._about = {
            "loader": found.dataset,
            "loader_file": found.file,
            "loader_line": found.line,
            "transforms": self._names,
            "worker": self._worker,
        }
        self._key = (found, *self._names)
        collate = vars(fetcher).get("collate_fn")
        name = getattr(collate, "__name__", None) or type(collate).__name__
        file, line = definition_line(collate)
        self._fetch = self._slot(SlotKind.FETCH)
        self._samples = self._slot(SlotKind.SAMPLES)
        self._processor = self._slot(SlotKind.PROCESSOR)
        self.rest = self._slot(SlotKind.REST)
        self.collate = self._slot(SlotKind.COLLATE, name=name, file=file, line=line)
        self._traced_fetch = self._slot(SlotKind.TRACED_FETCH)
        self.traced_rest = self._slot(SlotKind.TRACED_REST)
        self.traced_collate = self._slot(SlotKind.TRACED_COLLATE)
        self._transforms = [self._transform(n, t) for n, t in enumerate(transforms)]
        traced = [
            self._slot(SlotKind.TRACED_TRANSFORM, (n,), order=n) for n in range(len(transforms))
        ]
        self.traced_of = dict(zip(self._transforms, traced, strict=True))
        """The slots of transforms in traced fetches, by those in others."""
        self.traced_transforms = frozenset(traced)
        self._timed = [self._fetch, self._samples, self._processor, self.rest, self.collate]
        self._timed += self._transforms
        self._traced = [self._traced_fetch, self.traced_rest]
        self._traced += [self.traced_collate, *traced]
        self._held: dict[int, Any] = {}
        self.slot_of: dict[int, int] = {}  # by the identity of a transform that is alive
        self._lines: dict[tuple[str, int, bool], int] = {}
        self._works: dict[tuple[Any, ...], int] = {}
        self._unplaced = set(self._transforms)
        self.files: frozenset[str] = frozenset()
        self.untraced_left = _FIRST_UNTRACED
        self._searched = False

    def know(self, transforms: list[Any], fetcher: Any) -> None:
        """Another fetcher of this source: its transforms are timed, its files followed."""
        self.files |= traceable_files(fetcher)
        for transform, slot in zip(transforms, self._transforms, strict=True):
            key = id(transform)
            if key not in self._held:  # so that it stands for this transform or for nothing
                try:
                    self._held[key] = weakref.ref(transform, partial(self._died, key))
                except TypeError:  # its class has slots: then it stays alive with us
                    self._held[key] = transform
            self.slot_of[key] = slot

    def _died(self, key: int, _: object) -> None:
        self.slot_of.pop(key, None)
        self._held.pop(key, None)

    def line_slot(self, file: str, line: int, in_collate: bool) -> int:
        """The slot of a line; lines beyond the first thousand share what belongs to none."""
        key = (file, line, in_collate)
        slot = self._lines.get(key)
        if slot is None:
            if len(self._lines) >= _MAX_LINES:
                return self.traced_collate if in_collate else self.traced_rest
            part = "collate" if in_collate else "fetch"
            slot = self._slot(SlotKind.LINE, (key,), file=file, line=line, part=part)
            self._lines[key] = slot
            self._traced.append(slot)
        return slot

    def work_slot(self, work: SampleWork, stack: list[int]) -> int:
        """The slot of this work in the line or transform on top of the stack."""
        holders = map(self.slots.meaning, reversed(stack))
        holder = next(one for one in holders if one.what is not SlotKind.WORK)
        collates = holder.part == "collate" or holder.what is SlotKind.TRACED_COLLATE
        where = {"file": holder.file, "line": holder.line, "order": holder.order}
        where["part"] = "collate" if collates else "fetch"
        key = (work, *where.values())
        slot = self._works.get(key)
        if slot is None:
            slot = self._works[key] = self._slot(SlotKind.WORK, key, work=work, **where)
            self._traced.append(slot)
        return slot

    def fetched(
        self, elapsed_ns: int, samples: int | None, traced: bool, processor_ns: int
    ) -> None:
        """A fetch is over; one that raised before collating (`samples` None) is not a batch. For
        `processor_ns` it computed or waited for a core; else for storage."""
        sums = self.slots.sums
        whole = self._traced_fetch if traced else self._fetch
        sums[whole] = elapsed_ns
        if samples is not None:
            sums[whole - 1] = 1
        if traced:
            self.slots.flush(self._traced)
            gap = (elapsed_ns / self.slots.mean_ns(self._fetch) - 1) / _TRACE_COST
            self.untraced_left = int(min(max(gap, _MIN_GAP), _MAX_GAP)) - 1
        else:
            sums[self._samples - 1] = samples or 0
            sums[self._processor] = processor_ns
            self.slots.flush(self._timed)

    def place_transforms(self) -> None:
        """Once per loader: find the lines that construct the transforms."""
        if self._searched or self._worker or not self._names:
            return
        self._searched = True
        places = construction_lines(self._names, self.files)
        for slot, place in zip(self._transforms, places, strict=True):
            if place is not None:
                self._place(slot, *place, PlaceKind.CONSTRUCTED)

    def transform_called(self, transform: int, stack: list[int]) -> None:
        """A transform was called: the user's line nearest to the fetch leads to it."""
        if transform in self._unplaced:
            for about in map(self.slots.meaning, stack):
                file, line = about.file, about.line
                if about.what is SlotKind.LINE and file and line and is_user_file(file):
                    self._place(transform, file, line, PlaceKind.CALLED)
                    break

    def _place(self, slot: int, file: str, line: int, place: PlaceKind) -> None:
        self._unplaced.discard(slot)
        self.slots.place(slot, file, line, place)

    def _transform(self, order: int, transform: Any) -> int:
        file, line = definition_line(transform)
        about = {"name": type(transform).__name__, "place": PlaceKind.DEFINED, "order": order}
        return self._slot(SlotKind.TRANSFORM, (order,), file=file, line=line, **about)

    def _slot(self, what: SlotKind, which: tuple[Any, ...] = (), **meaning: Any) -> int:
        return self.slots.slot((self._key, what, *which), what=what, **meaning, **self._about)
