"""The journal of a tune: every finished trial, and the sources, versions and machine behind it. The
search is a pure function of its trials. A resumed search runs again from the beginning and gets the
recorded trials for the same requests, in order."""

import hashlib
import json
import os
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from stepscope.measure.trial.pool import BudgetSpent
from stepscope.measure.trial.record import RunTrial, Trial, TrialRequest
from stepscope.record.errors import UsageError
from stepscope.record.fix import FixOutcome
from stepscope.record.fix_words import outcome_json
from stepscope.record.trial import TrialReason
from stepscope.record.version import __version__
from stepscope.store import folder as folders
from stepscope.store.folder import request_difference
from stepscope.store.json_lines import RecordLog, read_record_lines

SCHEMA = "stepscope.tune-journal/2"
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "dist-packages")
_MOST = 5000  # files


class MadeWith(Struct, frozen=True):
    """Versions, and the GPU that trials see first (None: no GPU)."""

    stepscope: str | None = None
    python: str | None = None
    torch: str | None = None
    gpu: str | None = None


class JournalIdentity(Struct, frozen=True):
    """The first line of a journal: a tune must match it to resume."""

    schema: str
    asked: dict[str, object]  # the request
    made_with: MadeWith
    sources: dict[str, str]  # digests of the program's files
    in_place: bool = False
    """Whether its search may compare fixes inside one process: those of earlier versions did not,
    and are repeated as they were."""


def journal_identity(
    asked: Mapping[str, object], cwd: Path, environ: Mapping[str, str], script: str | None
) -> JournalIdentity:
    """`script` is the program's file; None for a module. `environ` is the trials' environment: it
    decides which GPU they see."""
    from stepscope.hardware.gpus import open_gpus, visible_gpu_index
    from stepscope.hardware.machine import package_version

    index = visible_gpu_index(environ)
    gpu = next((gpu.info().name for gpu in open_gpus() if gpu.index == index), None)
    made_with = MadeWith(__version__, sys.version.split()[0], package_version("torch"), gpu)
    plain = json.loads(json.dumps(asked))  # in the form it will be read back
    return JournalIdentity(SCHEMA, plain, made_with, source_digests(cwd, script), in_place=True)


def source_digests(cwd: Path, script: str | None) -> dict[str, str]:
    """Digests of the Python files under the working directory, and of the script, wherever it
    is."""
    files = islice(_python_files(cwd), _MOST)
    found = {str(path.relative_to(cwd)): _digest(path) for path in files}
    if script is not None and not (cwd / script).resolve().is_relative_to(cwd.resolve()):
        found[script] = _digest(cwd / script)
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    """Python files in a fixed order, skipping hidden folders, environments, caches and tunes (a
    killed tune leaves a copy of the sources)."""
    for place, names, files in os.walk(folder):
        shown = (n for n in names if not n.startswith(".") and n not in _PASSED_OVER)
        others = ("pyvenv.cfg", JOURNAL_FILE)
        names[:] = sorted(n for n in shown if not any(Path(place, n, o).exists() for o in others))
        yield from (Path(place, name) for name in sorted(files) if name.endswith(".py"))


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except OSError:
        return "unreadable"


JOURNAL_FILE = "journal.jsonl"
_ADVICE = "run tune without --resume to start over"


class Journal:
    """An open journal; `trials` are those finished so far. Create it with `open_journal`."""

    def __init__(
        self,
        path: Path,
        trials: list[Trial],
        lock: int,
        begin: JournalIdentity | None,
        in_place: bool,
    ) -> None:
        """`begin`: the first line of a fresh journal. `in_place`: as in that line."""
        self.trials, self._path, self._lock = trials, path, lock
        self.in_place = in_place
        self._lines = RecordLog(path)
        if begin is not None:
            self._lines.append(msgspec.to_builtins(begin))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()
        os.close(self._lock)

    def append(self, trial: Trial) -> None:
        """Write a trial durably. Raises UsageError on a full disk."""
        try:
            self._lines.append({"trial": _plain(trial)})
        except OSError as problem:
            raise UsageError(
                f"cannot write {self._path}: {problem.strerror}; finished trials are kept"
            ) from None
        self.trials.append(trial)


def open_journal(folder: Path, identity: JournalIdentity) -> Journal:
    """The journal in a folder, fresh or begun by the same tune. Raises UsageError."""
    if folders.in_use(folder):
        raise UsageError(f"{folder} is in use by another tune: wait, or choose another folder")
    lock = folders.lock_folder(folder)
    path = folder / JOURNAL_FILE
    try:
        known = read_record_lines(path, dict[str, object], _ADVICE)
        if known and (differs := _difference(known[0], identity)):
            raise UsageError(f"{folder} holds a different tune ({differs}): {_ADVICE}")
        trials = [_trial(line["trial"]) for line in known[1:]]
        in_place = known[0].get("in_place") is True if known else identity.in_place
        return Journal(path, trials, lock, None if known else identity, in_place)
    except BaseException as problem:
        os.close(lock)
        if isinstance(problem, KeyError | TypeError | ValueError):
            raise UsageError(f"{path} was written by another version: {_ADVICE}") from None
        raise


def _plain(trial: Trial) -> dict[str, object]:
    """A trial as a journal line: fixes by id, with their sentences."""
    kept: dict[str, object] = msgspec.to_builtins(replace(trial, fixes=()))
    return kept | {"fixes": [outcome_json(one) for one in trial.fixes]}


def _trial(line: Any) -> Trial:
    """Raises KeyError, TypeError or ValueError for another version's trial."""
    kept = msgspec.convert({**line, "fixes": ()}, Trial)
    return replace(kept, fixes=tuple(map(FixOutcome.from_json, line["fixes"])))


def run_journaled(
    run: RunTrial, journal: Journal, may_run: Callable[[], bool] = lambda: True
) -> RunTrial:
    """Answers requests from the journal while it can, then by `run`, recording those trials; if
    that may not run now, raises BudgetSpent."""
    known: defaultdict[bytes, deque[Trial]] = defaultdict(deque)
    for trial in journal.trials:
        known[trial.request.key()].append(trial)

    def answer(request: TrialRequest) -> Trial:
        recorded = known[request.key()]
        if recorded:
            return recorded.popleft()
        if not may_run():
            raise BudgetSpent
        # As read back from the journal, so that the search sees no difference.
        trial = _trial(json.loads(json.dumps(_plain(run(request)))))
        if trial.reason is not TrialReason.OUT_OF_BUDGET:  # a larger budget may allow it
            journal.append(trial)
        return trial

    return answer


def _difference(recorded: dict[str, object], now: JournalIdentity) -> str | None:
    """The first difference between a tune and the one that began the journal, or None."""
    if recorded.get("schema") != SCHEMA:
        return "written by another version"
    then = msgspec.convert(recorded, JournalIdentity)
    differs = request_difference(then.asked, now.asked)
    differs = differs or request_difference(asdict(then.made_with), asdict(now.made_with))
    if differs:
        return differs
    before, after = then.sources, now.sources
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            word = "is new" if name not in before else "is gone" if name not in after else "changed"
            return f"{name} {word}"
    return None
