"""What a report is about, read from wherever the user points."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import Timeline

ResultDocument = dict[str, Any]
KINDS = ("run", "trace", "tune", "bench", "batch")
_RESULT_FILES = {"tune": "tune.json", "bench": "bench.json", "batch": "batch.json"}
_ENDINGS = (".json", ".json.gz", ".sqlite", ".nsys-rep")


@dataclass(frozen=True, slots=True)
class RunTables:
    """A run's own tables, as recorded; empty arrays where there are none."""

    steps: Any
    """analyze.steps.Steps; None where no step was seen."""
    samples: npt.NDArray[Any]
    """Columns of record.rows.SAMPLE_COLUMNS."""
    warmup: int


@dataclass(frozen=True, slots=True)
class LoadedResult:
    """`document` is what the kind's `--json` prints."""

    kind: str
    """One of KINDS."""
    name: str
    """How the user would name it: an id, a file's name."""
    document: ResultDocument
    folder: Path | None
    """None for a trace alone."""
    trace: Path | None
    """The recorded window, or the trace itself; None where there is none."""
    timeline: Callable[[], Timeline | None]
    """Reads it, when asked for."""
    tables: Callable[[], RunTables | None]
    """None for what is no run."""


def load_result(what: str, cwd: Path) -> LoadedResult:
    """A run folder or id, a trace file, the folder or JSON of a tune or bench.

    Raises UsageError with what it may be.
    """
    path = Path(what)
    for kind, name in _RESULT_FILES.items():
        for file in (path / name, cwd / ".stepscope" / what / name):
            if file.is_file():
                return _result(kind, file)
    if path.is_file():
        return _file(path)
    if path.is_dir() and not (path / "run.json").exists() and _holds_traces(path):
        raise UsageError(
            f"{path} holds traces: report takes one of them; stepscope analyze compares ranks"
        )
    return _run(what, cwd)


def _holds_traces(folder: Path) -> bool:
    return any(file.name.endswith(_ENDINGS) for file in folder.iterdir())


def _file(path: Path) -> LoadedResult:
    """A result's JSON, or a trace."""
    if path.suffix == ".json" and path.stat().st_size < 64 << 20:
        try:
            document = json.loads(path.read_bytes())
        except ValueError:
            document = None
        schema = document.get("schema") if isinstance(document, dict) else None
        for kind in _RESULT_FILES:
            if isinstance(schema, str) and schema.startswith(f"stepscope.{kind}/"):
                return _result(kind, path)
    if path.name.endswith(_ENDINGS):
        return _trace(path)
    raise UsageError(
        f"{path} is no run folder, trace ({', '.join(_ENDINGS)}), or JSON of a tune or bench"
    )


def _run(what: str, cwd: Path) -> LoadedResult:
    from stepscope.analyze.run.summary import summarize
    from stepscope.diagnose.findings import with_findings
    from stepscope.store.folder import find_run

    folder = find_run(what, cwd)
    document = with_findings(summarize(folder), folder)
    trace = folder / "window.pt.trace.json.gz"
    return LoadedResult(
        "run",
        document["run"]["id"],
        document,
        folder,
        trace if trace.is_file() else None,
        lambda: _timeline(trace),
        lambda: _tables(folder, document),
    )


def _trace(path: Path) -> LoadedResult:
    from stepscope.analyze.timeline.document import analyze_timeline
    from stepscope.diagnose.findings import with_trace_findings
    from stepscope.hardware.ceiling_cache import known_ceilings
    from stepscope.trace.load import open_trace

    timeline = open_trace(path)
    document = with_trace_findings(analyze_timeline(timeline, known_ceilings()), timeline)
    return LoadedResult("trace", path.name, document, None, path, lambda: timeline, lambda: None)


def _result(kind: str, file: Path) -> LoadedResult:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError) as problem:
        raise UsageError(f"{file} cannot be read: {problem}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{file} is not the result of stepscope {kind}")
    folder = file.parent.resolve()
    return LoadedResult(kind, folder.name, document, folder, None, lambda: None, lambda: None)


def _timeline(trace: Path) -> Timeline | None:
    from stepscope.trace.kineto.read import read_kineto

    if not trace.is_file():
        return None
    try:
        return read_kineto(trace, processes=1)
    except StepscopeError:
        return None


def _tables(folder: Path, document: ResultDocument) -> RunTables:
    from stepscope.analyze.run.steps import assemble_steps
    from stepscope.store.table import read_table

    rows = read_table(folder / "rows.npy")
    start = float(document["run"].get("started_ns") or 0)
    steps = assemble_steps(rows, start)
    samples = np.asarray(read_table(folder / "samples.npy"))
    return RunTables(
        steps if len(steps) else None, samples, int(document["steps"]["warmup_steps"] or 0)
    )
