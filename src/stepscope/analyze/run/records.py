"""A run folder as recorded: each file is read when first asked for, and once."""

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from stepscope.analyze.run.data_pipeline import PipelineSource, read_pipeline
from stepscope.analyze.run.steps import Rows, Steps, assemble_steps
from stepscope.analyze.timeline.document import analyze_timeline
from stepscope.hardware.ceiling_cache import known_ceilings
from stepscope.record.errors import StepscopeError
from stepscope.record.facts import Facts, ProcessFact
from stepscope.record.run import RunRecord
from stepscope.record.timeline import Timeline
from stepscope.store.folder import read_run
from stepscope.store.json_lines import read_facts
from stepscope.store.source import SourceLines, read_sources
from stepscope.store.table import read_table
from stepscope.trace.kineto.read import read_kineto

WINDOW_TRACE = "window.pt.trace.json.gz"
STACKS_TRACE = "stacks.pt.trace.json.gz"
WINDOW_CACHE = "window.json"
_CACHE_SCHEMAS = ("stepscope.window/1", "stepscope.analyze/1")  # written now; as they were before
_Document = dict[str, Any]


class RunRecords:
    """What a run left in its folder, and what follows from that alone. Writes nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def run(self) -> RunRecord:
        """run.json. Raises BrokenRun."""
        return read_run(self.folder)

    @cached_property
    def facts(self) -> Facts:
        """What the program's process learned, by kind."""
        return read_facts(self.folder / "facts.jsonl")

    @cached_property
    def rows(self) -> Rows:
        """The always-on clocks' rows."""
        return read_table(self.folder / "rows.npy")

    @cached_property
    def samples(self) -> npt.NDArray[Any]:
        """Columns of record.row_log.SAMPLE_COLUMNS; empty where the machine was not sampled."""
        return read_table(self.folder / "samples.npy")

    @cached_property
    def sources(self) -> SourceLines:
        """The program's lines as they were when it ran, by file and number."""
        return read_sources(self.folder)

    @cached_property
    def pipeline(self) -> list[PipelineSource]:
        """What fetching from each dataset took, the largest first."""
        return read_pipeline(self.folder, self.facts)

    @cached_property
    def start_ns(self) -> float:
        """When the program started, on the rows' clock."""
        process = next(iter(self.facts.all(ProcessFact)), None)
        return self.run.start_ns or (float(process.booted_ns) if process else 0.0)

    @cached_property
    def steps(self) -> Steps:
        """The rows put together to steps."""
        return assemble_steps(self.rows, self.start_ns)

    @property
    def warmup(self) -> int | None:
        """The number of warm-up steps the user asked for; None: to be detected."""
        return self.run.warmup

    @cached_property
    def timeline(self) -> Timeline | None:
        """The recorded window; None where there is none or it cannot be read."""
        return _timeline(self.folder / WINDOW_TRACE)

    @cached_property
    def stacks(self) -> Timeline | None:
        """The window recorded with Python stacks, likewise."""
        return _timeline(self.folder / STACKS_TRACE)

    @cached_property
    def windows(self) -> _Document:
        """`timeline`: the window's analysis; `stacks`: lines and modules of the one with stacks.

        Each is None where it was not recorded or cannot be read. Taken from window.json where
        an earlier reader left it: analysing takes a while.
        """
        return self._kept_windows or {
            "schema": _CACHE_SCHEMAS[0],
            "timeline": _analysis(self.timeline),
            "stacks": _stack_lines(_analysis(self.stacks)),
        }

    @cached_property
    def _kept_windows(self) -> _Document | None:
        try:
            known = json.loads((self.folder / WINDOW_CACHE).read_text())
        except (OSError, ValueError):
            return None
        current = isinstance(known, dict) and known.get("schema") in _CACHE_SCHEMAS
        return known if current else None

    @property
    def windows_are_kept(self) -> bool:
        """Whether `windows` needs no writing: it is in the folder, or there is none."""
        return self._kept_windows is not None or self.windows["timeline"] is None


def _timeline(trace: Path) -> Timeline | None:
    if not trace.is_file():
        return None
    try:
        return read_kineto(trace, processes=1)
    except StepscopeError:
        return None


def _analysis(timeline: Timeline | None) -> _Document | None:
    if timeline is None:
        return None
    try:
        return analyze_timeline(timeline, known_ceilings())
    except StepscopeError:
        return None


def _stack_lines(document: _Document | None) -> _Document | None:
    """What only a recording with stacks tells; recording them distorts its times."""
    if document is None:
        return None
    idle = document["devices"][0]["idle"] if document["devices"] else {}
    return {
        "steps": document["steps"]["count"],
        "by": {key: document["by"][key] for key in ("module", "line")},
        "host": {"lines": (document["host"] or {}).get("lines") or []},
        "idle_places": {cause: one["places"] for cause, one in idle.items() if one["places"]},
    }
