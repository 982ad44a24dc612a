"""A whole tune: look, search, prove, confirm, write the patch."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepscope.measure.journal import Journal, journal_identity, open_journal, run_journaled
from stepscope.measure.prediction import window_predictor
from stepscope.measure.runner import TrialRunner
from stepscope.measure.speed import LoaderTiming, Speed, trial_steps
from stepscope.measure.trial import Trial, TrialRequest
from stepscope.measure.trial_folder import read_speed
from stepscope.measure.trial_host import host_named
from stepscope.measure.trial_pool import Budget, TrialPool
from stepscope.record.errors import UsageError
from stepscope.tune.document import TuneOutcome, tune_document
from stepscope.tune.patch.write import MeasuredPatch, write_and_measure
from stepscope.tune.proof.prover import Prover, program_rounding, prove_ladder
from stepscope.tune.request import TuneRequest, open_tune_folder
from stepscope.tune.search.applicable import (
    data_wait_share,
    most_workers,
    other_values,
    scout_device,
)
from stepscope.tune.search.candidates import compile_seconds, find_candidates, fix_name
from stepscope.tune.search.confirm import Confirmation, confirm
from stepscope.tune.search.ladder import Ladder, SearchResult
from stepscope.tune.search.strategy import run_search

SCOUT_STEPS: Final = 48
"""Steps of the first look, those recorded at kernel level among them."""
_PREFETCH: Final = 2  # batches ahead of each worker, as loaders have it
_LOADING: Final = {"workers", "prefetch", "persistent", "recycle"}
"""Fixes under which batches are ready before they are asked for: many steps show their pace."""
_FOR_PROOF: Final = 0.25  # of the budget, kept back for the proof
_OF_OUTPUTS: Final = 3  # trials that the proof of an inference program takes


@dataclass(frozen=True, slots=True)
class TrialEvent:
    """What a listener hears: a trial about to run, or one that ended."""

    ask: TrialRequest
    trial: Trial | None
    spent_s: float
    budget_s: float
    repeated: bool = False
    """It stood in the journal already."""


TrialListener = Callable[[TrialEvent], None]


class TuneSession:
    """One tune in its folder. Use `open_tune`."""

    def __init__(self, request: TuneRequest, folder: Path, cwd: Path, journal: Journal) -> None:
        self.folder = folder
        self._request = request
        self._cwd = cwd
        self._runner = TrialRunner(
            request.program,
            folder,
            cwd,
            host_named(request.on),
            request.allow_writes,
            done=len(journal.trials),
        )
        self._known = len(journal.trials)
        self._run = run_journaled(self._runner, journal)

    def run(self, hear: TrialListener) -> dict[str, Any]:
        """The document, also kept in the folder. Raises UsageError where nothing can be tuned."""
        with self._runner:
            return self._tuned(hear)

    def _tuned(self, hear: TrialListener) -> dict[str, Any]:
        request = self._request
        budget = Budget(self._heard(hear), request.budget_s)
        scout = budget(TrialRequest(steps=SCOUT_STEPS, window=True))
        seen = self._scouted(scout)
        self._runner.baseline = scout
        speed, feed = self._pace(scout, seen)
        lab = self._lab(budget, scout, seen, speed, feed)
        own = program_rounding(seen)
        prover = Prover(budget, lab, request, self._runner.folder_of, own, feed.epoch or None)
        see = window_predictor(seen, self._runner.folder_of(scout.number))
        standing = Ladder(lab, see, prover.rung, request.allow)
        found, left_out = find_candidates(
            seen,
            allow=request.allow,
            only=request.only,
            skip=request.skip,
            objective=request.objective,
            see=see,
        )
        result = run_search(
            standing,
            found,
            left_out,
            lambda name, value: self._others(name, value, seen),
            lambda fix: compile_seconds(fix, scout_device(seen)),
        )
        final, proof = self._settled(standing, prover)
        patching = self._patched(result, final, lab, seen)
        told = TuneOutcome(
            request, self.folder, seen, scout, result, final, proof, patching, lab, budget
        )
        return tune_document(told)

    def _others(self, name: str, value: str, seen: dict[str, Any]) -> list[str]:
        """Values to refine to; none where the user named the value."""
        given = any(one.startswith(f"{name}=") for one in self._request.only)
        return [] if given else other_values(name, value, seen)

    def _pace(self, scout: Trial, seen: dict[str, Any]) -> tuple[Speed, LoaderTiming]:
        started_ns = float(seen["run"].get("started_ns") or 0)
        return read_speed(self._runner.folder_of(scout.number), started_ns)

    def _lab(
        self, budget: Budget, scout: Trial, seen: dict[str, Any], speed: Speed, feed: LoaderTiming
    ) -> TrialPool:
        made = scout.steps if scout.steps < SCOUT_STEPS else None
        buffer = _PREFETCH * most_workers(seen)
        given = self._request.steps
        steps = given or trial_steps(speed, feed, made)
        buffered = given or trial_steps(speed, feed, made, buffer, data_wait_share(seen) or 0.0)
        return TrialPool(
            budget,
            TrialRequest(steps=steps, proof=True),
            self._request.objective,
            reserve_s=_for_proof(scout, budget.seconds),
            extra_s=lambda fix: compile_seconds(fix, scout_device(seen)),
            steps_of=lambda fixes: steps if _LOADING.isdisjoint(map(fix_name, fixes)) else buffered,
        )

    def _scouted(self, scout: Trial) -> dict[str, Any]:
        from stepscope.analyze.run.records import RunRecords
        from stepscope.analyze.run.summary import summarize
        from stepscope.diagnose.findings import with_findings

        folder = self._runner.folder_of(scout.number)
        if not scout.ok:
            raise UsageError(
                f"the program as it is does not get through {SCOUT_STEPS} steps: {scout.why}"
                f" (what it said: {folder / 'output.txt'})"
            )
        if scout.what == "batches":
            raise UsageError("only a data loader is used here: stepscope bench loader measures it")
        records = RunRecords(folder)
        return with_findings(summarize(records), records)

    def _settled(self, standing: Ladder, prover: Prover) -> tuple[Confirmation | None, Any]:
        """The ladder that is proven, and what it is worth on fresh trials."""
        try:
            proof = prove_ladder(standing, prover)
        except KeyboardInterrupt:
            standing.search.stopped, proof = "interrupted", None
        fresh = prover.fresh(standing.fixes)
        return confirm(standing.lab, standing.search, fresh), proof

    def _patched(
        self, result: SearchResult, final: Confirmation | None, lab: TrialPool, seen: dict[str, Any]
    ) -> MeasuredPatch | None:
        if not result.fixes:
            return None
        try:
            return write_and_measure(result, final, lab, seen, self._cwd, self.folder)
        except KeyboardInterrupt:
            return None

    def _heard(self, hear: TrialListener) -> Callable[[TrialRequest], Trial]:
        spent, asked = 0.0, 0

        def run(ask: TrialRequest) -> Trial:
            nonlocal spent, asked
            asked += 1
            repeated = asked <= self._known
            hear(TrialEvent(ask, None, spent, self._request.budget_s, repeated))
            trial = self._run(ask)
            spent += trial.seconds
            hear(TrialEvent(ask, trial, spent, self._request.budget_s, repeated))
            return trial

        return run


def _for_proof(scout: Trial, budget_s: float) -> float:
    """What is kept back for the proof. Outputs take a few short trials, losses all there is."""
    usual = _FOR_PROOF * budget_s
    return min(usual, _OF_OUTPUTS * scout.seconds) if scout.what == "inference" else usual


@contextmanager
def open_tune(
    request: TuneRequest, out: Path | None, resume: bool, force: bool, cwd: Path
) -> Iterator[TuneSession]:
    """A fresh tune, or one gone on with. Raises UsageError."""
    place = host_named(request.on)
    folder = open_tune_folder(out, resume, force, cwd)
    script = None if request.program.module else request.program.target
    who = journal_identity(request.identity(), cwd, {**os.environ, **place.variables}, script)
    with open_journal(folder, who) as journal:
        yield TuneSession(request, folder, cwd, journal)
