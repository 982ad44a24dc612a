"""The journal of a tune: every trial as it ended, so that a killed tune goes on where it was.

The search is a pure function of its trials. Gone on with, it runs again from the beginning and is
given the recorded trials for the same asks, in the order in which they were asked.
"""

import json
import os
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from stepscope.record.errors import UsageError
from stepscope.store import folder as folders
from stepscope.store.identity import difference
from stepscope.store.lines import Lines, read_lines
from stepscope.tune.ask import Ask
from stepscope.tune.trial import Run, Trial

JOURNAL = "journal.jsonl"
_ADVICE = "tune without --resume begins anew"


class Journal:
    """An open journal; `trials` are those finished so far. Use `open_journal`."""

    def __init__(self, folder: Path, trials: list[Trial], lock: int) -> None:
        self.trials = trials
        self._path = folder / JOURNAL
        self._lines = Lines(self._path)
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
                f"cannot write {self._path}: {problem.strerror}; what was tried so far is kept"
            ) from None
        self.trials.append(trial)

    def begin(self, identity: Mapping[str, Any]) -> None:
        """The first line of a fresh journal."""
        self._lines.append(dict(identity))


def open_journal(folder: Path, identity: Mapping[str, Any]) -> Journal:
    """The journal in a folder: a fresh one, or one that the same tune began. Raises UsageError."""
    lock = _locked(folder)
    try:
        known = read_lines(folder / JOURNAL, _ADVICE)
        if known:
            _check(folder, known[0], identity)
        journal = Journal(folder, [_trial(folder, record) for record in known[1:]], lock)
        if not known:
            journal.begin(identity)
    except BaseException:
        os.close(lock)
        raise
    return journal


def journaled(run: Run, journal: Journal) -> Run:
    """Answers asks from the journal while it has answers, then by `run`, which it keeps."""
    known: defaultdict[str, deque[Trial]] = defaultdict(deque)
    for trial in journal.trials:
        known[trial.ask.key()].append(trial)

    def answer(ask: Ask) -> Trial:
        recorded = known[ask.key()]
        if recorded:
            return recorded.popleft()
        # As it will be read again: the search must not see a difference.
        trial = Trial.from_json(json.loads(json.dumps(run(ask).to_json())))
        journal.append(trial)
        return trial

    return answer


def _locked(folder: Path) -> int:
    if folders.in_use(folder):
        raise UsageError(f"{folder} is in use by a tune under way: wait for it, or name another")
    return folders.lock(folder)


def _trial(folder: Path, record: Mapping[str, Any]) -> Trial:
    try:
        return Trial.from_json(record["trial"])
    except (KeyError, TypeError):
        raise UsageError(f"{folder / JOURNAL} is of another version: {_ADVICE}") from None


def _check(folder: Path, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise UsageError unless the journal is of this very tune."""
    differs = _difference(then, now)
    if differs:
        raise UsageError(f"{folder} is the tune of something else ({differs}): {_ADVICE}")


def _difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    if then.get("schema") != now["schema"]:
        return "of another version"
    for part in ("asked", "made_with"):
        if differs := difference(then.get(part, {}), now[part]):
            return differs
    before, after = then.get("sources", {}), now["sources"]
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            word = "is new" if name not in before else "is gone" if name not in after else "changed"
            return f"{name} {word}"
    return None
