"""A whole tune: look, search, prove, confirm, write the patch."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stepscope.record.errors import UsageError
from stepscope.tune.ask import Ask
from stepscope.tune.budget import Budget
from stepscope.tune.candidates import candidates, extra_s, name_of
from stepscope.tune.document import Told, document
from stepscope.tune.feed import Feed
from stepscope.tune.final import Confirmation, confirm
from stepscope.tune.home import open_home
from stepscope.tune.identity import identity
from stepscope.tune.journal import Journal, journaled, open_journal
from stepscope.tune.lab import Lab
from stepscope.tune.nothing_to_do import device, waiting
from stepscope.tune.outlook import outlook
from stepscope.tune.patching import Patching, patched
from stepscope.tune.places import place_named
from stepscope.tune.proving import Prover, own_arithmetic, settle
from stepscope.tune.reading import scouted
from stepscope.tune.request import Request
from stepscope.tune.rungs import Search
from stepscope.tune.runner import Runner
from stepscope.tune.search import search
from stepscope.tune.speed import Speed, steps_needed
from stepscope.tune.standing import Standing
from stepscope.tune.trial import Trial
from stepscope.tune.values import most_workers, other_values

SCOUT: Final = 48
"""Steps of the first look, those recorded at kernel level among them."""
_PREFETCH: Final = 2  # batches ahead of each worker, as loaders have it
_LOADING: Final = {"workers", "prefetch", "persistent", "recycle"}
"""Fixes under which batches are ready before they are asked for: many steps show their pace."""
_FOR_PROOF: Final = 0.25  # of the budget, kept back for the proof
_OF_OUTPUTS: Final = 3  # trials that the proof of an inference program takes


@dataclass(frozen=True, slots=True)
class Event:
    """What a listener hears: a trial about to run, or one that ended."""

    ask: Ask
    trial: Trial | None
    spent_s: float
    budget_s: float
    repeated: bool = False
    """It stood in the journal already."""


Hear = Callable[[Event], None]


class Tuning:
    """One tune in its folder. Use `open_tune`."""

    def __init__(self, request: Request, folder: Path, cwd: Path, journal: Journal) -> None:
        self.folder = folder
        self._request = request
        self._cwd = cwd
        self._runner = Runner(
            request.program,
            folder,
            cwd,
            place_named(request.on),
            request.allow_writes,
            done=len(journal.trials),
        )
        self._known = len(journal.trials)
        self._run = journaled(self._runner, journal)

    def run(self, hear: Hear) -> dict[str, Any]:
        """The document, also kept in the folder. Raises UsageError where nothing can be tuned."""
        with self._runner:
            return self._tuned(hear)

    def _tuned(self, hear: Hear) -> dict[str, Any]:
        request = self._request
        budget = Budget(self._heard(hear), request.budget_s)
        scout = budget(Ask(steps=SCOUT, window=True))
        seen = self._scouted(scout)
        self._runner.baseline = scout
        speed, feed = self._pace(scout, seen)
        lab = self._lab(budget, scout, seen, speed, feed)
        own = own_arithmetic(seen)
        prover = Prover(budget, lab, request, self._runner.folder_of, own, feed.epoch or None)
        see = outlook(seen, self._runner.folder_of(scout.number))
        standing = Standing(lab, see, prover.rung, request.allow)
        found, left_out = candidates(
            seen,
            allow=request.allow,
            only=request.only,
            skip=request.skip,
            objective=request.objective,
            see=see,
        )
        result = search(
            standing,
            found,
            left_out,
            lambda name, value: self._others(name, value, seen),
            lambda fix: extra_s(fix, device(seen)),
        )
        final, proof = self._settled(standing, prover)
        patching = self._patched(result, final, lab, seen)
        told = Told(request, self.folder, seen, scout, result, final, proof, patching, lab, budget)
        return document(told)

    def _others(self, name: str, value: str, seen: dict[str, Any]) -> list[str]:
        """Values to refine to; none where the user named the value."""
        given = any(one.startswith(f"{name}=") for one in self._request.only)
        return [] if given else other_values(name, value, seen)

    def _pace(self, scout: Trial, seen: dict[str, Any]) -> tuple[Speed, Feed]:
        started_ns = float(seen["run"].get("started_ns") or 0)
        return scouted(self._runner.folder_of(scout.number), started_ns)

    def _lab(
        self, budget: Budget, scout: Trial, seen: dict[str, Any], speed: Speed, feed: Feed
    ) -> Lab:
        made = scout.steps if scout.steps < SCOUT else None
        buffer = _PREFETCH * most_workers(seen)
        given = self._request.steps
        steps = given or steps_needed(speed, feed, made)
        buffered = given or steps_needed(speed, feed, made, buffer, waiting(seen) or 0.0)
        return Lab(
            budget,
            Ask(steps=steps, proof=True),
            self._request.objective,
            reserve_s=_for_proof(scout, budget.seconds),
            extra_s=lambda fix: extra_s(fix, device(seen)),
            steps_of=lambda fixes: steps if _LOADING.isdisjoint(map(name_of, fixes)) else buffered,
        )

    def _scouted(self, scout: Trial) -> dict[str, Any]:
        from stepscope.analyze.summary import summarize
        from stepscope.diagnose.findings import with_findings

        folder = self._runner.folder_of(scout.number)
        if not scout.ok:
            raise UsageError(
                f"the program as it is does not get through {SCOUT} steps: {scout.why}"
                f" (what it said: {folder / 'output.txt'})"
            )
        if scout.what == "batches":
            raise UsageError("only a data loader is used here: stepscope bench loader measures it")
        return with_findings(summarize(folder), folder)

    def _settled(self, standing: Standing, prover: Prover) -> tuple[Confirmation | None, Any]:
        """The ladder that is proven, and what it is worth on fresh trials."""
        try:
            proof = settle(standing, prover)
        except KeyboardInterrupt:
            standing.search.stopped, proof = "interrupted", None
        fresh = prover.fresh(standing.fixes)
        return confirm(standing.lab, standing.search, fresh), proof

    def _patched(
        self, result: Search, final: Confirmation | None, lab: Lab, seen: dict[str, Any]
    ) -> Patching | None:
        if not result.fixes:
            return None
        try:
            return patched(result, final, lab, seen, self._cwd, self.folder)
        except KeyboardInterrupt:
            return None

    def _heard(self, hear: Hear) -> Callable[[Ask], Trial]:
        spent, asked = 0.0, 0

        def run(ask: Ask) -> Trial:
            nonlocal spent, asked
            asked += 1
            repeated = asked <= self._known
            hear(Event(ask, None, spent, self._request.budget_s, repeated))
            trial = self._run(ask)
            spent += trial.seconds
            hear(Event(ask, trial, spent, self._request.budget_s, repeated))
            return trial

        return run


def _for_proof(scout: Trial, budget_s: float) -> float:
    """What is kept back for the proof. Outputs take a few short trials, losses all there is."""
    usual = _FOR_PROOF * budget_s
    return min(usual, _OF_OUTPUTS * scout.seconds) if scout.what == "inference" else usual


@contextmanager
def open_tune(
    request: Request, out: Path | None, resume: bool, force: bool, cwd: Path
) -> Iterator[Tuning]:
    """A fresh tune, or one gone on with. Raises UsageError."""
    place = place_named(request.on)
    folder = open_home(out, resume, force, cwd)
    script = None if request.program.module else request.program.target
    who = identity(request.identity(), cwd, {**os.environ, **place.variables}, script)
    with open_journal(folder, who) as journal:
        yield Tuning(request, folder, cwd, journal)
