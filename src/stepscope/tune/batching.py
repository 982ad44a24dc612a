"""Trials of batch sizes on this machine, and the folder that keeps them."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepscope.launch.program import Program
from stepscope.store.folder import create
from stepscope.tune.ask import Ask
from stepscope.tune.batch_document import document
from stepscope.tune.batch_program import Hear, Wanted, search_program
from stepscope.tune.batch_seen import Seen, available, see
from stepscope.tune.places import place_named
from stepscope.tune.runner import Runner
from stepscope.tune.trial import Trial

DOCUMENT = "batch.json"


class Batching:
    """One `stepscope batch`: its trials lie in `folder`, and in the end its document."""

    def __init__(
        self, program: Program, out: Path | None, cwd: Path, allow_writes: bool = False
    ) -> None:
        """Raises UsageError for a folder that cannot be used."""
        self.folder = create(out, False, cwd, prefix="batch-")
        self._program = program
        self._runner = Runner(program, self.folder, cwd, place_named(None), allow_writes)
        self._available = available()
        self._first: Trial | None = None
        self._own: int | None = None

    def run(self, wanted: Wanted, hear: Hear) -> tuple[dict[str, Any], bool]:
        """The document, and whether the search was interrupted."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._runner:
            searched = search_program(wanted, self._trial, self._look, hear)
        found = document(searched, wanted, self._program, started)
        found["folder"] = str(self.folder)
        text = json.dumps(found, indent=1, allow_nan=False)
        (self.folder / DOCUMENT).write_text(text + "\n")
        return found, searched.interrupted

    def _trial(self, ask: Ask) -> Trial:
        if self._first is not None and self._own is not None:
            larger = max(1.0, _batch(ask, self._own) / self._own)
            seconds = self._first.seconds * larger
            self._runner.baseline = replace(self._first, seconds=seconds)
        trial = self._runner(ask)
        self._first = self._first or trial
        return trial

    def _look(self, trial: Trial) -> Seen:
        seen = see(self._runner.folder_of(trial.number), self._available)
        self._own = seen.batch
        return seen


def _batch(ask: Ask, own: int) -> int:
    """The batch size a trial asks for."""
    sizes = [fix.partition("=")[2] for fix in ask.fixes if fix.startswith("batch=")]
    return int(sizes[0]) if sizes else own
