"""A whole tune: scout, search, prove, confirm, write the patch."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from stepscope.analyze.run.document import RunSummary, to_json
from stepscope.fixes.applicability import ObservedProgram
from stepscope.fixes.data.workers import most_workers
from stepscope.fixes.registry import fix_named
from stepscope.measure.journal import Journal, journal_identity, open_journal, run_journaled
from stepscope.measure.prediction import window_predictor
from stepscope.measure.runner import TrialRunner
from stepscope.measure.speed import LoaderTiming, Speed, trial_steps
from stepscope.measure.trial.folder import read_speed
from stepscope.measure.trial.host import host_named
from stepscope.measure.trial.pool import Budget, BudgetSpent, TrialPool
from stepscope.measure.trial.record import Trial, TrialRequest
from stepscope.record.errors import UsageError
from stepscope.record.trial import StopReason, TrialReason
from stepscope.tune.document import ConfirmFailure, Tune
from stepscope.tune.patch import write_and_measure
from stepscope.tune.proof.prover import Prover, program_rounding, prove_ladder
from stepscope.tune.request import DOCUMENT_FILE, TuneRequest, open_tune_folder
from stepscope.tune.result import TuneOutcome, tune_result
from stepscope.tune.search.candidates import find_candidates, fix_name, setup_seconds
from stepscope.tune.search.confirm import confirm
from stepscope.tune.search.ladder import Ladder, SearchResult
from stepscope.tune.search.strategy import run_search

SCOUT_STEPS: Final = 48  # steps of the scout run, including those recorded at kernel level
_PREFETCH: Final = 2  # batches ahead per worker, the default of loaders
_FOR_PROOF: Final = 0.25  # of the budget, reserved for the proof
_OF_OUTPUTS: Final = 3  # trials for the proof of an inference program


class Stage(StrEnum):
    """What a tune does, in this order."""

    SCOUT = "scout"
    SEARCH = "search"
    PROOF = "proof"
    CONFIRMATION = "confirmation"
    PATCH = "patch"


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """A trial about to run, or one that ended."""

    request: TrialRequest
    trial: Trial | None
    spent_s: float
    budget_s: float
    repeated: bool = False  # it was already in the journal
    stage: Stage = Stage.SEARCH
    waiting: tuple[str, ...] = ()  # candidates to be tried after this one
    interrupted: bool = False  # the user ended the search


TrialListener = Callable[[TrialEvent], None]


class Tuner:
    """One tune in its folder. Use `open_tune`."""

    def __init__(self, request: TuneRequest, folder: Path, cwd: Path, journal: Journal) -> None:
        self.folder = folder
        self._request = request
        self._cwd = cwd
        self._journal, host = journal, host_named(request.on)
        self._runner = TrialRunner(
            request.program,
            folder,
            cwd,
            host,
            request.allow_writes,
            request.unguarded,
            done=max((trial.number for trial in journal.trials), default=0),
        )
        self._stage, self._search = Stage.SCOUT, SearchResult()
        self.interrupted = False
        """Whether the user ended it."""
        self._run = run_journaled(self._runner, journal, self._may_run)

    @property
    def trials(self) -> int:
        """How many have ended."""
        return len(self._journal.trials)

    def run(self, listener: TrialListener) -> Tune:
        """The result, which is also kept in the folder. Raises UsageError if nothing can be
        tuned."""
        with self._runner:
            return self._tuned(listener)

    def _tuned(self, listener: TrialListener) -> Tune:
        request, before = self._request, None
        if request.prove:
            before = _document(self.folder)
            searched_s = before.request.budget_s or request.budget_s
            granted_s, request = request.budget_s, replace(request, budget_s=searched_s)
        budget = Budget(lambda asked: self._announced(asked, budget, listener), request.budget_s)
        try:
            scout = budget(TrialRequest(steps=SCOUT_STEPS, window=True))
        except BudgetSpent:
            told = "the budget ended in the first trial: give more with --budget"
            raise UsageError(told) from None
        run = self._scouted(scout)
        document = to_json(run)
        self._runner.baseline = scout
        program = ObservedProgram(document)
        started_ns = float(document["run"].get("started_ns") or 0)
        speed, loader = read_speed(self._runner.folder_of(scout.number), started_ns)
        pool = self._pool(budget, scout, program, speed, loader)
        own = program_rounding(document)
        prover = Prover(budget, pool, request, self._runner.folder_of, own, loader.epoch or None)
        predict = window_predictor(run, self._runner.folder_of(scout.number))
        self._stage = Stage.SEARCH
        ladder = Ladder(pool, predict, prover.rung, request.allow, self._search)
        ladder.in_place = self._journal.in_place and not program.compiles
        found, left_out = find_candidates(
            program,
            allow=request.allow,
            only=request.only,
            skip=request.skip,
            objective=request.objective,
            predict=predict,
        )
        given = {fix_name(one) for one in request.only if "=" in one}

        def others(name: str, value: str) -> list[str]:  # none if the user gave the value
            return [] if name in given else fix_named(name).other_values(value, program)

        def extra_s(fix: str) -> float:
            return setup_seconds(fix, program.device)

        result = run_search(ladder, found, left_out, others, extra_s)
        if before is not None:
            if not result.fixes:
                raise UsageError(f"{self.folder} kept no fix: there is nothing to prove")
            result.stopped, prover.grant_s = before.stopped, granted_s
        proof = patch = None
        over = False  # an interrupt after the search: nothing more is run
        self._stage = Stage.PROOF
        try:
            proof = prove_ladder(ladder, prover)
        except KeyboardInterrupt:
            over, result.stopped = True, StopReason.INTERRUPTED
            proof = prover.latest or (result.rungs[-1].proof if result.rungs else None)
        self._stage = Stage.CONFIRMATION
        final = confirm(pool, result, prover.fresh(ladder.fixes), over)
        if final is not None and final.failure is ConfirmFailure.INTERRUPTED:
            result.stopped = StopReason.INTERRUPTED
        self._stage = Stage.PATCH
        if result.fixes:
            patch = write_and_measure(result, final, pool, document, self._cwd, self.folder)
        earlier = before is not None and before.stopped is StopReason.INTERRUPTED
        self.interrupted = over or (result.stopped is StopReason.INTERRUPTED and not earlier)
        folder = self.folder
        return tune_result(
            TuneOutcome(request, folder, document, scout, result, final, proof, patch, pool, budget)
        )

    def _pool(
        self,
        budget: Budget,
        scout: Trial,
        program: ObservedProgram,
        speed: Speed,
        loader: LoaderTiming,
    ) -> TrialPool:
        # Proving outputs takes a few short trials, proving losses the whole reserve.
        reserve_s = _FOR_PROOF * budget.seconds
        if scout.what == "inference":
            reserve_s = min(reserve_s, _OF_OUTPUTS * scout.seconds)
        made = scout.steps if scout.steps < SCOUT_STEPS else None
        buffer = _PREFETCH * most_workers(program)
        given = self._request.steps
        steps = given or trial_steps(speed, loader, made)
        buffered = given or trial_steps(speed, loader, made, buffer, program.data_wait_share or 0.0)
        pool = TrialPool(
            budget,
            TrialRequest(steps=steps, proof=True),
            self._request.objective,
            reserve_s=reserve_s,
            extra_s=lambda fix: setup_seconds(fix, program.device),
            steps_of=lambda fixes: (
                buffered if any(fix_named(fix_name(one)).fills_buffers for one in fixes) else steps
            ),
        )
        pool.most_steps = made
        pool.first_s = steps * fmean(speed.step_ms) / 1e3 if speed.step_ms else 0.0
        return pool

    def _scouted(self, scout: Trial) -> RunSummary:
        from stepscope.analyze.run.records import RunRecords
        from stepscope.analyze.run.summary import summarize
        from stepscope.diagnose.findings import with_findings

        folder = self._runner.folder_of(scout.number)
        if not scout.ok:
            output = folder / "output.txt"
            raise UsageError(f"baseline failed: {scout.failure} (its output: {output})")
        if scout.what == "batches":
            raise UsageError("this program only runs a data loader: use stepscope bench loader")
        records = RunRecords(folder)
        return with_findings(summarize(records), records)

    def _may_run(self) -> bool:
        """A search that is only repeated to go on with its proof runs nothing new."""
        return not self._request.prove or self._stage not in (Stage.SCOUT, Stage.SEARCH)

    def _announced(self, request: TrialRequest, budget: Budget, listener: TrialListener) -> Trial:
        untried, known = self._search.untried, len(self._journal.trials)
        candidates = request.contests.candidates if request.contests else ()
        under_way = {fix for fixes in (request.fixes, *candidates) for fix in fixes}
        event = TrialEvent(
            request,
            None,
            budget.spent,
            budget.seconds,
            stage=self._stage,
            waiting=tuple(one for one in untried if one not in under_way),
            interrupted=self._search.stopped is StopReason.INTERRUPTED and not self._request.prove,
        )
        listener(event)
        trial = self._run(request)
        cut = trial.reason is TrialReason.OUT_OF_BUDGET
        repeated = len(self._journal.trials) == known and not cut
        if repeated and self._request.prove and self._stage is Stage.PROOF:
            budget.seconds += trial.seconds  # paid for before
        spent = budget.spent + trial.seconds + trial.shared_s
        listener(replace(event, trial=trial, spent_s=spent, repeated=repeated))
        return trial


def _document(folder: Path) -> Tune:
    """The result of the tune in this folder. Raises UsageError."""
    try:
        return msgspec.json.decode((folder / DOCUMENT_FILE).read_bytes(), type=Tune)
    except (OSError, msgspec.DecodeError):
        told = f"{folder} holds no finished tune to prove: continue it with --resume alone"
        raise UsageError(told) from None


@contextmanager
def open_tune(
    request: TuneRequest, out: Path | None, resume: bool, force: bool, cwd: Path
) -> Iterator[Tuner]:
    """A fresh or resumed tune. Raises UsageError."""
    host = host_named(request.on)
    folder = open_tune_folder(out, resume, force, cwd)
    script = None if request.program.module else request.program.target
    asked = msgspec.to_builtins(request.settings())
    del asked["budget_s"], asked["unguarded"]  # neither changes a trial, and the budget may grow
    who = journal_identity(asked, cwd, {**os.environ, **host.variables}, script)
    with open_journal(folder, who) as journal:
        yield Tuner(request, folder, cwd, journal)
