"""One `stepscope batch`: its trials, its folder and its result."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stepscope.analyze.run.document import to_json
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.summary import summarize
from stepscope.batch.document import Batch, batch_result
from stepscope.batch.program import (
    BatchListener,
    BatchRequest,
    ProgramFacts,
    program_facts,
    search_program,
)
from stepscope.hardware.processor import free_bytes
from stepscope.launch.program import Program
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial.host import host_named
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.store.folder import create_folder

DOCUMENT_FILE = "batch.json"


class BatchFinder:
    """One `stepscope batch`; `folder` holds its trials and finally its document."""

    def __init__(
        self,
        program: Program,
        out: Path | None,
        cwd: Path,
        allow_writes: bool = False,
        unguarded: bool = False,
    ) -> None:
        """Raises UsageError for an unusable folder, or if nothing can protect the user's files."""
        self.folder = create_folder(out, False, cwd, prefix="batch-")
        self._program = program
        self._runner = TrialRunner(
            program, self.folder, cwd, host_named(None), allow_writes, unguarded
        )
        self._available = free_bytes()
        self._first: Trial | None = None
        self._own: int | None = None

    def run(self, request: BatchRequest, listener: BatchListener) -> tuple[Batch, bool]:
        """The result, and whether the search was interrupted."""
        started = datetime.now(UTC).isoformat(timespec="seconds")
        with self._runner:
            searched = search_program(request, self._trial, self._read_facts, listener)
        found = batch_result(searched, request, self._program, started, str(self.folder))
        text = msgspec.json.format(msgspec.json.encode(found), indent=1)
        (self.folder / DOCUMENT_FILE).write_bytes(text + b"\n")
        return found, searched.interrupted

    def _trial(self, request: TrialRequest) -> Trial:
        if self._first is not None and self._own is not None:
            sizes = [int(fix[len("batch=") :]) for fix in request.fixes if fix.startswith("batch=")]
            larger = max([self._own, *sizes[:1]]) / self._own
            self._runner.baseline = replace(self._first, seconds=self._first.seconds * larger)
        trial = self._runner(request)
        self._first = self._first or trial
        return trial

    def _read_facts(self, trial: Trial) -> ProgramFacts:
        run = summarize(RunRecords(self._runner.folder_of(trial.number)))
        facts = program_facts(to_json(run), self._available)
        self._own = facts.batch
        return facts
