"""`load`: the only way to read results.

CLI, API, reports, comparisons and notebooks start here. Heavy parts (rows, timelines, samples) are
read once, on first use.
"""

import copy
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, get_args

import msgspec
from msgspec import Struct, ValidationError
from msgspec.structs import fields

from stepscope.analyze.run.document import RunSummary, from_json, to_json
from stepscope.analyze.timeline.document import TraceAnalysis, analyze_ranks, trace_analysis
from stepscope.hardware.ceiling_cache import known_ceilings
from stepscope.hardware.machine import Machine
from stepscope.record.errors import BrokenRun, UsageError
from stepscope.record.timeline import Timeline
from stepscope.store.folder import RUN_FILE, RUNS_FOLDER, find_run
from stepscope.store.json_file import (
    LARGEST_DOCUMENT,
    check_numbers,
    read_json,
    read_plain,
    write_whole,
)
from stepscope.store.source import SourceLines
from stepscope.trace.load import TRACE_ENDINGS, open_ranks, open_trace, trace_files

if TYPE_CHECKING:
    import numpy.typing as npt

    from stepscope.analyze.timeline.roofline.rates import WorkCounters

ResultDocument = dict[str, Any]
_S = TypeVar("_S", bound=Struct)


def decode(document: object, struct: type[_S]) -> _S:
    """A document as its Struct. Raises UsageError if it is of another version."""
    try:
        return from_json(document, struct)
    except ValidationError as problem:
        written = document.get("schema") if isinstance(document, dict) else None
        schema = next((one.type for one in fields(struct) if one.name == "schema"), str)
        read = " or ".join(get_args(schema))
        old = read and isinstance(written, str) and written not in get_args(schema)
        why = f"it is {written}, but this version reads {read}" if old else str(problem)
        raise UsageError(f"written by another version of stepscope: {why}") from None


def _finite(document: ResultDocument, what: str) -> ResultDocument:
    """The document; raises BrokenRun if it holds a number that is not finite."""
    try:
        check_numbers(document, below=math.inf)  # a loss may be arbitrarily large
    except (RecursionError, ValueError) as problem:
        raise BrokenRun(f"{what}: {problem}") from None
    return document


class LoadedResult:
    """What results of all kinds share."""

    kind: ClassVar[str]

    def __init__(self, name: str, folder: Path | None = None, trace: Path | None = None) -> None:
        self.name = name
        """How the user would name it: an id, a file's name."""
        self.folder = folder
        """None for a trace alone."""
        self.trace = trace
        """The file of the recorded window or trace, or None."""
        self.source = name
        """What an error names."""
        self._alter_timeline: Callable[[Timeline], Timeline] | None = None

    @cached_property
    def document(self) -> ResultDocument:
        """What the kind's `--json` prints. Raises StepscopeError if it cannot be read."""
        return self._document()

    def _document(self) -> ResultDocument:
        raise NotImplementedError

    def decoded(self, struct: type[_S]) -> _S:
        """Its document as a Struct, with its machine checked. Raises UsageError."""
        try:
            check_numbers(self.document, below=sys.float_info.max)
            decode(self.document.get("machine") or {}, Machine)
            return decode(self.document, struct)
        except (RecursionError, UsageError, ValueError) as problem:
            raise UsageError(f"{self.source}: {problem}") from None

    @cached_property
    def timeline(self) -> Timeline | None:
        """The recorded window or trace, or None."""
        found, alter = self._read_timeline(), self._alter_timeline
        return found if found is None or alter is None else alter(found)

    @cached_property
    def tables(self) -> "RunTables | None":
        """A run's step and sample tables; None for other kinds."""
        return None

    def _read_timeline(self) -> Timeline | None:
        return None

    def replaced(
        self, *, timeline: Callable[[Timeline], Timeline] | None = None, **fields: Any
    ) -> Self:
        """A copy with other attributes; `timeline` transforms the timeline when it is read."""
        made = copy.copy(self)
        if "document" in fields:
            made.__dict__.pop("summary", None)
        made.__dict__.update(fields)
        if timeline is not None:
            made.__dict__.pop("timeline", None)
            made._alter_timeline = timeline
        return made


@dataclass(frozen=True, slots=True)
class RunTables:
    """A run's tables as recorded; empty arrays if there are none."""

    steps: Any
    """analyze.run.steps.Steps; None if no step was seen."""
    samples: "npt.NDArray[Any]"
    """Columns of record.row_log.SAMPLE_COLUMNS."""
    warmup: int


class Run(LoadedResult):
    """An observed run: its records and what they show."""

    kind = "run"

    def __init__(self, folder: Path) -> None:
        from stepscope.analyze.run.records import WINDOW_TRACE, RunRecords

        self.records: RunRecords = RunRecords(folder)
        trace = self.records.lead / WINDOW_TRACE
        name = self.records.run.run.id or folder.name
        super().__init__(name, folder, trace if trace.is_file() else None)

    @cached_property
    def summary(self) -> RunSummary:
        """The whole summary, with findings. Caches the windows' analysis in the folder.

        For a redacted run, or one made from a document, what the document says.
        """
        from stepscope.analyze.run.records import WINDOW_CACHE
        from stepscope.analyze.run.summary import summarize
        from stepscope.diagnose.findings import with_findings
        from stepscope.measure.prediction import with_fix_effect

        if "document" in self.__dict__:
            return decode(self.document, RunSummary)
        records = self.records
        found = with_fix_effect(with_findings(summarize(records), records), records)
        if not records.windows_are_kept:
            with suppress(OSError):  # a folder that is not ours is still read
                write_whole(records.lead / WINDOW_CACHE, msgspec.json.encode(records.windows))
        return found

    def _document(self) -> ResultDocument:
        return _finite(to_json(self.summary), f"{self.records.folder}: damaged run folder")

    @cached_property
    def tables(self) -> RunTables | None:
        """Its steps and the machine's samples."""
        steps, samples = self.records.steps, self.records.samples
        return RunTables(steps if len(steps) else None, samples, self.summary.steps.warmup_steps)

    @cached_property
    def analysis(self) -> TraceAnalysis | None:
        """The recorded window's analysis; None without one."""
        return self.records.windows.timeline

    @cached_property
    def stacks(self) -> Timeline | None:
        """The window recorded with Python stacks."""
        return None if self.folder is None else self.records.stacks

    @cached_property
    def sources(self) -> SourceLines:
        """Source lines at run time, by file and number; none once redacted."""
        return {} if self.folder is None else self.records.sources

    def _read_timeline(self) -> Timeline | None:
        return self.records.timeline


class Trace(LoadedResult):
    """A recording made by any tool."""

    kind = "trace"

    def __init__(self, path: Path, timeline: Timeline | None = None) -> None:
        super().__init__(path.name, None, path)
        self._path = path
        if timeline is not None:
            self.recording = timeline
        self.counters: Mapping[int, WorkCounters] | None = None
        """What Nsight Compute counted, by device event; set before the document is first read."""

    @cached_property
    def recording(self) -> Timeline:
        """The timeline as recorded. Raises StepscopeError."""
        return open_trace(self._path)

    def _document(self) -> ResultDocument:
        from stepscope.diagnose.findings import with_trace_findings

        found = to_json(with_trace_findings(self.analysis, self.recording))
        return _finite(found, f"{self._path}: damaged recording")

    @cached_property
    def analysis(self) -> TraceAnalysis:
        """Everything the recording shows, except findings."""
        return trace_analysis(self.recording, known_ceilings(), self.counters)

    @property
    def timelines(self) -> list[Timeline]:
        """Its timeline, as the only rank."""
        return [self.recording]

    def _read_timeline(self) -> Timeline | None:
        return self.recording


class Ranks(LoadedResult):
    """Recordings of several ranks of one program."""

    kind = "ranks"

    def __init__(self, folder: Path, timelines: list[Timeline] | None = None) -> None:
        super().__init__(folder.name)
        self._folder = folder
        if timelines is not None:
            self.timelines = timelines

    @cached_property
    def timelines(self) -> list[Timeline]:
        """In order of rank. Raises StepscopeError if none can be read."""
        return open_ranks(self._folder)

    def _document(self) -> ResultDocument:
        found = to_json(analyze_ranks(self.timelines, known_ceilings()))
        return _finite(found, f"{self._folder}: damaged recording")


class StoredResult(LoadedResult):
    """A result stored as one JSON document."""

    schema: ClassVar[str]
    """What the document's schema begins with."""
    file: ClassVar[str | None] = None
    """Its name in the result's folder; None if it is written only to a file the user names."""

    def __init__(self, path: Path) -> None:
        folder = path.parent.resolve()
        super().__init__(folder.name, folder)
        self._path, self.source = path, str(path)

    def _document(self) -> ResultDocument:
        try:
            found = read_json(self._path)
        except FileNotFoundError:
            raise UsageError(f"{self._path} is gone") from None
        if not isinstance(found, dict):
            raise UsageError(f"{self._path} is not a result of stepscope {self.kind}")
        return found


class Tune(StoredResult):
    """The result of `stepscope tune`."""

    kind, schema, file = "tune", "stepscope.tune/", "tune.json"


class Bench(StoredResult):
    """The result of `stepscope bench`."""

    kind, schema, file = "bench", "stepscope.bench/", "bench.json"


class Batch(StoredResult):
    """The result of `stepscope batch`."""

    kind, schema, file = "batch", "stepscope.batch/", "batch.json"


class Comparison(StoredResult):
    """The result of `stepscope compare`."""

    kind, schema = "comparison", "stepscope.compare/"


STORED: tuple[type[StoredResult], ...] = (Tune, Bench, Batch, Comparison)
"""The kinds decoded from a document, distinguished by its schema."""
COMPARED = ("run", "trace", "tune", "bench")
"""The kinds that can be compared."""
REPORTED = (*COMPARED, "batch")
"""The kinds that can be reported."""


def load(
    what: str | Path | None = None, cwd: Path | None = None, kinds: Iterable[str] | None = None
) -> LoadedResult:
    """A run folder or id, a trace, a folder of ranks' traces, or a result's folder or JSON.

    None: the last run in `cwd` (default: the current folder). Raises UsageError for anything else
    and for other `kinds`.
    """
    found = _find(what, Path.cwd() if cwd is None else cwd)
    if kinds is not None and found.kind not in (allowed := tuple(kinds)):
        if found.kind == "ranks":
            raise UsageError(
                f"{what} holds traces of several ranks: name one, or run stepscope analyze {what}"
            )
        raise UsageError(f"{what} is a {found.kind} result: name a {_either(allowed)}")
    _ = found.document  # an unreadable result fails here
    return found


def load_traces(paths: Sequence[Path]) -> Trace | Ranks:
    """Recordings: one, or one per rank. Raises StepscopeError."""
    timelines = open_ranks(paths)
    if len(timelines) == 1:
        return Trace(Path(timelines[0].source), timelines[0])
    return Ranks(paths[0], timelines)


def _find(what: str | Path | None, cwd: Path) -> LoadedResult:
    if what is None:
        return Run(find_run(None, cwd))
    path = Path(what)
    for kind in STORED:
        for folder in (path, cwd / RUNS_FOLDER / what):
            if kind.file is not None and (folder / kind.file).is_file():
                return kind(folder / kind.file)
    if path.is_file():
        return _file(path)
    inside = path.iterdir() if path.is_dir() and not (path / RUN_FILE).exists() else ()
    if any(file.name.endswith(TRACE_ENDINGS) for file in inside):
        files = trace_files(path)
        return Trace(files[0]) if len(files) == 1 else Ranks(path)
    return Run(find_run(str(what), cwd))


def _file(path: Path) -> LoadedResult:
    """A result's JSON, or a trace."""
    if path.suffix == ".json" and path.stat().st_size <= LARGEST_DOCUMENT:
        schema = _schema(path)
        for kind in STORED:
            if schema.startswith(kind.schema):
                return kind(path)
    if path.name.endswith(TRACE_ENDINGS):
        return Trace(path)
    raise UsageError(
        f"{path} is not a run folder, a trace ({', '.join(TRACE_ENDINGS)}) or the JSON of a "
        f"{_either([kind.kind for kind in STORED])}"
    )


class _Schema(Struct):
    schema: str = ""


def _schema(path: Path) -> str:
    """The schema a document names, "" if none; the rest is skipped."""
    try:
        return msgspec.json.decode(read_plain(path), type=_Schema).schema
    except (BrokenRun, ValueError, RecursionError):
        return ""


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
