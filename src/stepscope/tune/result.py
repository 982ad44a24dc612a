"""Makes the document of a tune from a finished search."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from stepscope.fixes.base import FixKind
from stepscope.measure.runner import run_command
from stepscope.measure.trial.pool import Budget, TrialPool
from stepscope.measure.trial.record import Trial, Trials
from stepscope.record.privacy import masked_arguments
from stepscope.record.proof import Proof, ProofState
from stepscope.record.trial import NoteKind, TrialNote
from stepscope.record.version import __version__
from stepscope.stats.intervals import estimate
from stepscope.tune import document
from stepscope.tune.proof.judge import training_changes
from stepscope.tune.request import DOCUMENT_FILE, TuneRequest
from stepscope.tune.search.confirm import Confirmation
from stepscope.tune.search.ladder import HeldContest, Rung, SearchResult


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    request: TuneRequest
    folder: Path
    seen: dict[str, Any]  # the document of the scout run, with its findings
    scout: Trial
    search: SearchResult
    final: Confirmation | None
    proof: Proof | None
    patch: document.TunedPatch | None
    pool: TrialPool
    budget: Budget


def tune_result(outcome: TuneOutcome) -> document.Tune:
    """The result, which is also written to the folder."""
    request, search, seen = outcome.request, outcome.search, outcome.seen
    losses = search.baseline[0].losses if search.baseline else ()
    findings = tuple(
        document.ScoutFinding(
            **{name: one[name] for name in ("id", "title", "fix", "kind")},
            predicted_speedup=(one["predicted"] or {}).get("speedup"),
        )
        for one in seen["findings"]
    )
    whole = document.Tune(
        run=_program(outcome),
        machine=seen["config"].get("machine", {}),
        request=request.settings(),
        scout=document.Scout(trial=outcome.scout.number, findings=findings),
        baseline=document.MeasuredBaseline(**_measured(search.baseline, outcome), losses=losses),
        ladder=tuple(_rung(rung, outcome) for rung in search.rungs),
        rejected=tuple(
            document.RejectedFix(
                fix=one.fix,
                state=one.why.state,
                because=one.why,
                proof=one.proof,
                **document.Speedup.fields(one.comparison),
            )
            for one in search.rejected
        ),
        contests=tuple(map(_contest, search.contests)),
        untried=tuple(search.untried),
        final=_final(outcome),
        command=run_command(request.program, search.fixes) if search.fixes else None,
        patch=outcome.patch,
        search=document.SearchCost(trials=search.trials, seconds=search.seconds),
        trials=outcome.budget.asked,
        seconds=outcome.budget.spent,
        stopped=search.stopped,
        notes=_notes(search),
    )
    part = outcome.folder / f"{DOCUMENT_FILE}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    part.replace(outcome.folder / DOCUMENT_FILE)
    return whole


def _contest(held: HeldContest) -> document.TunedContest:
    found = held.comparison
    return document.TunedContest(
        candidate=held.fixes,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        steps=held.steps,
        seconds=held.seconds,
        in_place=held.in_place,
    )


def _program(outcome: TuneOutcome) -> document.TunedProgram:
    run, program = outcome.seen["run"], outcome.request.program
    gpu = (outcome.seen.get("gpu") or {}).get("name")
    return document.TunedProgram(
        id=outcome.folder.resolve().name,
        folder=str(outcome.folder),
        program=program.name,
        argv=tuple(masked_arguments(program.arguments)),
        device=run["device"],
        device_name=gpu or (run["device"] or "cpu").upper(),
        torch=run["torch"],
        python=run["python"],
        git=run.get("git"),
        stepscope=__version__,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _measured(trials: Trials, outcome: TuneOutcome) -> Mapping[str, Any]:
    """The fields of `Measured`."""
    if not trials:
        return {}
    found = estimate([trial.step_ms for trial in trials], outcome.pool.floor())
    per_step = [trial.samples_per_step for trial in trials if trial.samples_per_step]
    rate = fmean(per_step) * 1e3 / found.value if per_step else None
    energy = _known(trials, "energy_j_per_step")
    price = outcome.request.price_per_hour
    return {
        "step_ms": found.value,
        "low_ms": found.low,
        "high_ms": found.high,
        "spread": found.spread,
        "processes": len(trials),
        "samples_per_s": rate,
        "peak_memory_bytes": _known(trials, "peak_memory_bytes", max),
        "gpu_busy": _known(trials, "gpu_busy"),
        "energy_j_per_step": energy,
        "energy_j_per_sample": energy / fmean(per_step) if energy and per_step else None,
        "cost_per_million": price / 3600 * 1e6 / rate if price is not None and rate else None,
    }


def _known(trials: Trials, name: str, how: Any = fmean) -> float | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return float(how(values)) if values else None


def _rung(rung: Rung, outcome: TuneOutcome) -> document.TunedRung:
    candidate = rung.candidate
    name, _, value = candidate.fix.partition("=")
    semantic = candidate.kind == FixKind.SEMANTIC
    return document.TunedRung(
        fix=name,
        params={"value": value} if value else {},
        label=candidate.label,
        along=candidate.along,
        kind=candidate.kind,
        fixes=rung.fixes,
        **document.Speedup.fields(rung.comparison),
        cumulative=document.Speedup(**document.Speedup.fields(rung.cumulative)),
        predicted_speedup=None if candidate.predicted is None else candidate.predicted.speedup,
        predicted=candidate.predicted,
        proof=_proof(rung, outcome.proof),
        replaces=rung.replaces,
        compile_s=rung.compile_s,
        pays_after_steps=rung.pays_after_steps,
        trials=tuple(trial.number for trial in rung.trials),
        **_measured(rung.trials, outcome),
        losses=rung.trials[0].losses if rung.trials else (),
        changes=training_changes((candidate.fix,)) if semantic else (),
    )


def _proof(rung: Rung, whole: Proof | None) -> Proof | None:
    """A rung's own proof. One seed cannot show that a numeric fix matches: then the whole ladder's
    proof covers it, with several seeds or draws per batch."""
    proven = whole and whole.state in (ProofState.IDENTICAL, ProofState.MATCHES)
    if whole and proven and rung.proof and rung.proof.state is ProofState.UNCLEAR:
        return msgspec.structs.replace(whole, whole_ladder=True)
    return rung.proof


def _final(outcome: TuneOutcome) -> document.Confirmed | None:
    final = outcome.final
    if final is None:
        return None
    return document.Confirmed(
        fixes=final.fixes,
        **document.Speedup.fields(final.comparison),
        confirmed=final.confirmed,
        failure=final.failure,
        detail=final.detail,
        processes=(len(final.baseline), len(final.ladder)),
        compile_s=final.compile_s,
        pays_after_steps=final.pays_after_steps,
        trials=tuple(trial.number for trial in (*final.baseline, *final.ladder)),
        proof=outcome.proof,
        measured=document.MeasuredSides(
            baseline=document.Measured(**_measured(final.baseline, outcome)),
            ladder=document.Measured(**_measured(final.ladder, outcome)),
        ),
    )


def _notes(search: SearchResult) -> tuple[document.NoteSummary, ...]:
    """What makes these trials less reliable, each kind once, from its worst trial."""
    trials = [*search.baseline, *(trial for rung in search.rungs for trial in rung.trials)]
    by_kind: dict[tuple[NoteKind, str], list[TrialNote]] = {}
    for note in (note for trial in trials for note in trial.notes):
        which = "" if note.kind is NoteKind.UNSTABLE else note.detail
        by_kind.setdefault((note.kind, which), []).append(note)
    found = []
    for (kind, _), notes in by_kind.items():
        worst, count = max(notes, key=lambda note: note.share), len(notes)
        found.append(
            document.NoteSummary(kind=kind, detail=worst.detail, trials=count, of=len(trials))
        )
    return tuple(found)
