"""A run folder as recorded: each file is read once, on first use."""

from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy.typing as npt
from msgspec import Struct

from stepscope.analyze.run.data_pipeline import PipelineSource, read_pipeline
from stepscope.analyze.run.document import PythonLines, StackLines, WorkWithStacks, from_json
from stepscope.analyze.run.steps import Rows, Steps, assemble_steps
from stepscope.analyze.timeline.document import TraceAnalysis, trace_analysis
from stepscope.hardware.ceiling_cache import known_ceilings
from stepscope.hardware.machine import Machine
from stepscope.record.errors import BrokenRun, StepscopeError
from stepscope.record.facts import Facts, ProcessFact, RankFact
from stepscope.record.fix import FixOutcome, fix_outcomes
from stepscope.record.row_log import (
    FIRST_SAMPLE_COLUMNS,
    MEETING_COLUMNS,
    MEETINGS_FILE,
    ROW_COLUMNS,
)
from stepscope.record.run import RunRecord
from stepscope.record.timeline import Timeline
from stepscope.store.folder import RUN_FILE, RankFolder, in_use, rank_folders, read_run
from stepscope.store.json_file import read_finite_json
from stepscope.store.json_lines import read_facts
from stepscope.store.source import SourceLines, read_sources
from stepscope.store.table import read_table
from stepscope.trace.kineto.read import read_kineto

WINDOW_TRACE = "window.pt.trace.json.gz"
STACKS_TRACE = "stacks.pt.trace.json.gz"
WINDOW_CACHE = "window.json"
_CACHE_SCHEMAS = ("stepscope.window/1", "stepscope.analyze/1")  # the first is written


class Windows(Struct, frozen=True):
    """The analysed windows; None where one was not recorded or cannot be read."""

    schema: str
    timeline: TraceAnalysis | None
    stacks: StackLines | None


class RunRecords:
    """The contents of a run folder, and what follows from them alone. Writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.in_use = False

    @cached_property
    def ranks(self) -> "list[RankRecords]":
        """In order of rank; empty for a program of one process. The first process may be one."""
        found = [RankRecords(one, self) for one in rank_folders(self.folder)]
        if not found:
            return []
        with suppress(BrokenRun):
            own = read_facts(self.folder / "facts.jsonl").last(RankFact)
            if own is not None and own.rank not in [one.number for one in found]:
                found.append(RankRecords(RankFolder(own.rank, self.folder, 0), self))
        return sorted(found, key=lambda one: one.number)

    @cached_property
    def lead(self) -> Path:
        """The folder whose steps stand for the run: of several ranks' the first with any."""
        for one in self.ranks:
            with suppress(BrokenRun):
                if len(one.steps):
                    return one.folder
        return self.folder

    @cached_property
    def run(self) -> RunRecord:
        """run.json. Raises BrokenRun."""
        self.in_use = in_use(self.folder)  # asked first: a run may end while it is read
        run = read_run(self.folder)
        try:
            from_json(run.machine or {}, Machine)
        except msgspec.ValidationError as problem:
            where = self.folder / RUN_FILE
            raise BrokenRun(f"{where}, its machine: {problem}") from None
        return run

    @cached_property
    def facts(self) -> Facts:
        """What the probe recorded, by kind."""
        return read_facts(self.lead / "facts.jsonl")

    @cached_property
    def rows(self) -> Rows:
        """The always-on clocks' rows."""
        return read_table(self.lead / "rows.npy", ROW_COLUMNS)

    @cached_property
    def samples(self) -> npt.NDArray[Any]:
        """Columns of record.row_log.SAMPLE_COLUMNS; empty where the machine was not sampled."""
        return read_table(self.folder / "samples.npy", FIRST_SAMPLE_COLUMNS)

    @cached_property
    def sources(self) -> SourceLines:
        """The program's lines as they were when it ran, by file and number."""
        return read_sources(self.lead)

    @cached_property
    def pipeline(self) -> list[PipelineSource]:
        """What fetching from each dataset took, the largest first."""
        return read_pipeline(self.lead, self.facts)

    @cached_property
    def fixes(self) -> list[FixOutcome]:
        """What became of the requested fixes."""
        return fix_outcomes(self.facts.fixes, self.run.fixes)

    @cached_property
    def steps(self) -> Steps:
        """The rows put together to steps."""
        process = next(iter(self.facts.all(ProcessFact)), None)
        booted_ns = float(process.booted_ns) if process else 0.0
        return assemble_steps(self.rows, self.run.start_ns or booted_ns)

    @cached_property
    def timeline(self) -> Timeline | None:
        """The recorded window; None where there is none or it cannot be read."""
        return _timeline(self.lead / WINDOW_TRACE)

    @cached_property
    def stacks(self) -> Timeline | None:
        """The window recorded with Python stacks, likewise."""
        return _timeline(self.lead / STACKS_TRACE)

    @cached_property
    def windows(self) -> Windows:
        """Read from window.json if an earlier reader left it, since analysing takes a while."""
        if self._kept_windows:
            return self._kept_windows
        stacks, lines = _analysis(self.stacks), None
        if stacks is not None:
            idle = stacks.devices[0].idle if stacks.devices else {}
            lines = StackLines(
                steps=stacks.steps.count,
                by=WorkWithStacks(stacks.by.module, stacks.by.line),
                host=PythonLines((stacks.host.lines if stacks.host else None) or []),
                idle_places={cause: one.places for cause, one in idle.items() if one.places},
            )
        return Windows(_CACHE_SCHEMAS[0], _analysis(self.timeline), lines)

    @cached_property
    def _kept_windows(self) -> Windows | None:
        try:
            kept = from_json(read_finite_json(self.lead / WINDOW_CACHE), Windows)
        except (OSError, BrokenRun, ValueError):
            return None
        return kept if kept.schema in _CACHE_SCHEMAS else None

    @property
    def windows_are_kept(self) -> bool:
        """Whether `windows` needs no writing: it is in the folder, or there is none."""
        return self._kept_windows is not None or self.windows.timeline is None


class RankRecords(RunRecords):
    """One rank of a run with several."""

    def __init__(self, place: RankFolder, whole: RunRecords) -> None:
        super().__init__(place.folder)
        self.number, self.restarts = place.rank, place.restarts
        self._whole = whole

    @cached_property
    def run(self) -> RunRecord:
        """The whole run's."""
        return self._whole.run

    @cached_property
    def ranks(self) -> "list[RankRecords]":
        return []

    @cached_property
    def meetings(self) -> npt.NDArray[Any]:
        """Columns of record.row_log.MEETING_COLUMNS; empty where it never met another rank."""
        return read_table(self.folder / MEETINGS_FILE, MEETING_COLUMNS)


def _timeline(trace: Path) -> Timeline | None:
    with suppress(StepscopeError):
        return read_kineto(trace, processes=1) if trace.is_file() else None
    return None


def _analysis(timeline: Timeline | None) -> TraceAnalysis | None:
    with suppress(StepscopeError):
        return trace_analysis(timeline, known_ceilings()) if timeline is not None else None
    return None
