"""The journal of a tune: every trial as it ended, and the sources, versions and machine it belongs
to.

The search is a pure function of its trials. Resumed, it runs again from the beginning and is
handed the recorded trials for the same requests, in the order they were made.
"""

import hashlib
import json
import os
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import msgspec

from stepscope.measure.trial.record import RunTrial, Trial, TrialRequest
from stepscope.record.errors import UsageError
from stepscope.record.trial import NoteKind, TrialReason
from stepscope.record.version import __version__
from stepscope.store import folder as folders
from stepscope.store.folder import request_difference
from stepscope.store.json_lines import RecordLog, read_record_lines

SCHEMA = "stepscope.tune-journal/2"
_READABLE = (SCHEMA, "stepscope.tune-journal/1")
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "dist-packages")
_MOST = 5000  # files


def journal_identity(
    asked: Mapping[str, Any], cwd: Path, environ: Mapping[str, str], script: str | None
) -> dict[str, Any]:
    """Ready for JSON. `script` is the program's file; None for a module.

    `environ` is what trials run with: it decides which GPU they see.
    """
    return {
        "schema": SCHEMA,
        "asked": dict(asked),
        "made_with": {
            "stepscope": __version__,
            "python": sys.version.split()[0],
            "torch": _version("torch"),
            "gpu": _gpu(environ),
        },
        "sources": source_digests(cwd, script),
    }


def source_digests(cwd: Path, script: str | None) -> dict[str, str]:
    """Digests of the Python files under the working directory, and of the script wherever it is."""
    found = {}
    for path in _python_files(cwd):
        found[str(path.relative_to(cwd))] = _digest(path)
        if len(found) >= _MOST:
            break
    if script is not None and not (cwd / script).resolve().is_relative_to(cwd.resolve()):
        found[script] = _digest(cwd / script)
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    """In a fixed order; hidden folders, environments and caches are passed over."""
    for place, names, files in os.walk(folder):
        names[:] = sorted(
            name
            for name in names
            if not name.startswith(".")
            and name not in _PASSED_OVER
            and not os.path.exists(os.path.join(place, name, "pyvenv.cfg"))
        )
        yield from (Path(place, name) for name in sorted(files) if name.endswith(".py"))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _gpu(environ: Mapping[str, str]) -> str | None:
    """The name of the GPU that trials will see first; None for none."""
    from stepscope.hardware.gpus import open_gpus, visible_gpu_index

    index = visible_gpu_index(environ)
    return next((gpu.info().name for gpu in open_gpus() if gpu.index == index), None)


JOURNAL_FILE = "journal.jsonl"
_ADVICE = "run tune without --resume to start over"


class Journal:
    """An open journal; `trials` are those finished so far. Use `open_journal`."""

    def __init__(self, folder: Path, trials: list[Trial], lock: int) -> None:
        self.trials = trials
        self._path = folder / JOURNAL_FILE
        self._lines = RecordLog(self._path)
        self._lock = lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        os.close(self._lock)

    def append(self, trial: Trial) -> None:
        """Keep a trial for good. Raises UsageError on a full disk."""
        try:
            self._lines.append({"trial": trial.to_json()})
        except OSError as problem:
            raise UsageError(
                f"cannot write {self._path}: {problem.strerror}; finished trials are kept"
            ) from None
        self.trials.append(trial)

    def begin(self, identity: Mapping[str, Any]) -> None:
        """The first line of a fresh journal."""
        self._lines.append(dict(identity))


def open_journal(folder: Path, identity: Mapping[str, Any]) -> Journal:
    """The journal in a folder: a fresh one, or one that the same tune began. Raises UsageError."""
    lock = _locked(folder)
    try:
        known = read_record_lines(folder / JOURNAL_FILE, _ADVICE)
        if known:
            _check(folder, known[0], identity)
        journal = Journal(folder, [_trial(folder, record) for record in known[1:]], lock)
        if not known:
            journal.begin(identity)
    except BaseException:
        os.close(lock)
        raise
    return journal


def run_journaled(run: RunTrial, journal: Journal) -> RunTrial:
    """Answers requests from the journal while it can, then by `run`, and keeps those trials."""
    known: defaultdict[bytes, deque[Trial]] = defaultdict(deque)
    for trial in journal.trials:
        known[trial.request.key()].append(trial)

    def answer(request: TrialRequest) -> Trial:
        recorded = known[request.key()]
        if recorded:
            return recorded.popleft()
        # As it will be read again: the search must not see a difference.
        recorded_form = json.loads(json.dumps(run(request).to_json()))
        trial = read_recorded_trial(recorded_form)
        journal.append(trial)
        return trial

    return answer


def _locked(folder: Path) -> int:
    if folders.in_use(folder):
        raise UsageError(f"{folder} is in use by another tune: wait, or choose another folder")
    return folders.lock_folder(folder)


def _trial(folder: Path, record: Mapping[str, Any]) -> Trial:
    try:
        return read_recorded_trial(record["trial"])
    except (KeyError, msgspec.ValidationError):
        raise UsageError(
            f"{folder / JOURNAL_FILE} was written by another version: {_ADVICE}"
        ) from None


def read_recorded_trial(data: Mapping[str, Any]) -> Trial:
    """A trial of any journal version: the first one kept sentences, which become `detail`."""
    if "why" in data:
        data = {
            **data,
            "detail": data["why"],
            "reason": None if data["why"] is None else TrialReason.RECORDED,
            "notes": [{"kind": NoteKind.RECORDED, "detail": text} for text in data["notes"]],
            "steady": len(data["step_ms"]),
        }
    return Trial.from_json(data)


def _check(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError unless the journal is of this very tune."""
    differs = _difference(then, now)
    if differs:
        raise UsageError(f"{folder} holds a different tune ({differs}): {_ADVICE}")


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    if then.get("schema") not in _READABLE:
        return "written by another version"
    for part in ("asked", "made_with"):
        if differs := request_difference(then.get(part, {}), now[part]):
            return differs
    before, after = then.get("sources", {}), now["sources"]
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            word = "is new" if name not in before else "is gone" if name not in after else "changed"
            return f"{name} {word}"
    return None
