"""A tune as one document: what `tune --json` prints and its folder keeps."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.fixes.base import FixKind
from stepscope.measure.trial import Trial
from stepscope.measure.trial_pool import Budget, TrialPool
from stepscope.record.privacy import masked_arguments
from stepscope.record.version import __version__
from stepscope.stats.intervals import estimate
from stepscope.tune.patch import MeasuredPatch
from stepscope.tune.proof.result import IDENTICAL, MATCHES, UNCLEAR, Proof, changes_training
from stepscope.tune.request import DOCUMENT_FILE, TuneRequest
from stepscope.tune.search.confirm import Confirmation
from stepscope.tune.search.ladder import Rung, SearchResult

SCHEMA = "stepscope.tune/1"
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    """Everything a tune came to."""

    request: TuneRequest
    folder: Path
    seen: Document
    """The scout run with its findings."""
    scout: Trial
    search: SearchResult
    final: Confirmation | None
    proof: Proof | None
    patching: MeasuredPatch | None
    lab: TrialPool
    budget: Budget


def tune_document(told: TuneOutcome) -> Document:
    """Ready for JSON; written to the folder."""
    request, search = told.request, told.search
    whole: Document = {
        "schema": SCHEMA,
        "run": _run(told),
        "machine": told.seen["config"].get("machine", {}),
        "request": {**request.identity(), "budget_s": request.budget_s},
        "scout": {"trial": told.scout.number, "findings": _findings(told.seen)},
        "baseline": _measured(search.baseline, request, told.lab)
        | {"losses": list(search.baseline[0].losses) if search.baseline else []},
        "ladder": [_rung(rung, told) for rung in search.rungs],
        "rejected": [one.to_json() for one in search.rejected],
        "untried": list(search.untried),
        "final": _final(told),
        "command": _command(request, search.fixes) if search.fixes else None,
        "patch": None if told.patching is None else told.patching.to_json(),
        "search": {"trials": search.trials, "seconds": search.seconds},
        "trials": told.budget.asked,
        "seconds": told.budget.spent,
        "stopped": search.stopped,
        "notes": _notes(search),
    }
    part = told.folder / f"{DOCUMENT_FILE}.part"
    part.write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n")
    part.replace(told.folder / DOCUMENT_FILE)
    return whole


def _run(told: TuneOutcome) -> Document:
    run = told.seen["run"]
    gpu = (told.seen.get("gpu") or {}).get("name")
    return {
        "id": told.folder.resolve().name,
        "folder": str(told.folder),
        "program": told.request.program.name,
        "argv": masked_arguments(told.request.program.arguments),
        "device": run["device"],
        "device_name": gpu or (run["device"] or "cpu").upper(),
        "torch": run["torch"],
        "python": run["python"],
        "git": run.get("git"),
        "stepscope": __version__,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _findings(seen: Document) -> list[Document]:
    kept = ("id", "title", "fix", "kind")
    return [
        {name: one[name] for name in kept}
        | {"predicted_speedup": (one["predicted"] or {}).get("speedup")}
        for one in seen["findings"]
    ]


def _measured(trials: Sequence[Trial], request: TuneRequest, lab: TrialPool) -> Document:
    """Speed and what it takes; None where it is not known."""
    if not trials:
        return {}
    found = estimate([trial.step_ms for trial in trials], lab.floor())
    per_step = [trial.samples_per_step for trial in trials if trial.samples_per_step]
    rate = fmean(per_step) * 1e3 / found.value if per_step else None
    energy = _known(trials, "energy_j_per_step")
    price = request.price_per_hour
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


def _known(trials: Sequence[Trial], name: str, how: Any = fmean) -> float | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return float(how(values)) if values else None


def _rung(rung: Rung, told: TuneOutcome) -> Document:
    semantic = rung.candidate.kind == FixKind.SEMANTIC
    return {
        **rung.to_json(),
        "label": " + ".join(rung.candidate.whole),
        **_measured(rung.trials, told.request, told.lab),
        "losses": list(rung.trials[0].losses) if rung.trials else [],
        "adjust": changes_training((rung.candidate.fix,)).words if semantic else None,
        "proof": _proof(rung, told.proof),
    }


def _proof(rung: Rung, whole: Proof | None) -> Document | None:
    """A rung's own. One seed cannot say that a numeric fix matches: the whole ladder's proof,
    which has several or holds its draws, speaks for it then."""
    own = rung.proof
    if own is None:
        return None
    if own.state == UNCLEAR and whole is not None and whole.state in (IDENTICAL, MATCHES):
        return {**whole.to_json(), "words": f"{whole.words}, with the whole ladder"}
    return own.to_json()


def _final(told: TuneOutcome) -> Document | None:
    if told.final is None:
        return None
    proof = None if told.proof is None else told.proof.to_json()
    measured = {
        "baseline": _measured(told.final.baseline, told.request, told.lab),
        "ladder": _measured(told.final.ladder, told.request, told.lab),
    }
    return {**told.final.to_json(), "proof": proof, "measured": measured}


def _command(request: TuneRequest, fixes: Sequence[str]) -> str:
    program = request.program
    words = ["stepscope", "run"]
    for fix in fixes:
        words += ["--fix", fix]
    words += ["-m"] if program.module else []
    return shlex.join([*words, program.target, *masked_arguments(program.arguments)])


def _notes(search: SearchResult) -> list[str]:
    """What makes these trials less to be relied on, each kind said once."""
    trials = [*search.baseline, *(trial for rung in search.rungs for trial in rung.trials)]
    by_kind: dict[str, list[str]] = {}
    for note in (note for trial in trials for note in trial.notes):
        by_kind.setdefault(re.sub(r"[\d.,]+", "#", note), []).append(note)
    return [f"{len(notes)} of {len(trials)} trials: {_worst(notes)}" for notes in by_kind.values()]


def _worst(notes: Sequence[str]) -> str:
    """The note with the largest number in it."""
    return max(
        notes, key=lambda note: max(map(float, re.findall(r"\d+(?:\.\d+)?", note)), default=0)
    )
