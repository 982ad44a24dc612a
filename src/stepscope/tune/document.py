"""The result of a tune: what `tune --json` prints and its folder keeps."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec import Struct, field

from stepscope.fixes.base import FixKind
from stepscope.measure.prediction import Prediction
from stepscope.measure.trial.pool import Budget, TrialPool
from stepscope.measure.trial.record import Trial
from stepscope.record.errors import UsageError
from stepscope.record.fix import TrainingChange
from stepscope.record.privacy import masked_arguments
from stepscope.record.proof import Proof, ProofReason, ProofState
from stepscope.record.trial import NoteKind, Rejection, RejectReason, StopReason, TrialNote
from stepscope.record.version import __version__
from stepscope.stats.intervals import estimate
from stepscope.stats.verdict import Comparison, Verdict
from stepscope.tune.patch import MeasuredPatch, PatchStatus
from stepscope.tune.proof.result import training_changes
from stepscope.tune.request import DOCUMENT_FILE, TuneRequest
from stepscope.tune.search.confirm import Confirmation, ConfirmFailure
from stepscope.tune.search.ladder import Rejected, Rung, SearchResult

SCHEMA = "stepscope.tune/2"
_EARLIER = "stepscope.tune/1"
Document = dict[str, Any]


class Speedup(Struct, frozen=True, kw_only=True):
    """A measured speedup with its 95% interval. None: not measured."""

    speedup: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: Verdict | None = None


class Measured(Struct, frozen=True, kw_only=True):
    """Speed and resources of a set of trials. None: not known."""

    step_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    spread: float | None = None
    processes: int = 0
    samples_per_s: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy: float | None = None
    energy_j_per_step: float | None = None
    energy_j_per_sample: float | None = None
    cost_per_million: float | None = None


class MeasuredBaseline(Measured, frozen=True, kw_only=True):
    """The program without fixes."""

    losses: tuple[float | None, ...] = ()


class TunedRung(MeasuredBaseline, frozen=True, kw_only=True):
    """A fix that was kept, beside those below it."""

    fix: str
    params: dict[str, str] = field(default_factory=dict)
    label: str
    along: tuple[str, ...] = ()
    """Fixes that were tried with it, as one."""
    kind: str
    fixes: tuple[str, ...] = ()
    """The whole set with it."""
    speedup: float
    """Against the set below, with its 95% interval."""
    low: float
    high: float
    verdict: Verdict
    cumulative: Speedup
    """Against the baseline."""
    predicted_speedup: float | None = None
    predicted: Prediction | None = None
    proof: Proof | None = None
    replaces: str | None = None
    compile_s: float | None = None
    pays_after_steps: int | None = None
    trials: tuple[int, ...] = ()
    changes: tuple[TrainingChange, ...] = ()
    """What a semantic fix changes in training."""


class RejectedFix(Speedup, frozen=True, kw_only=True):
    """A fix that was not kept."""

    fix: str
    state: str
    """A RejectState, or the status of the trial that decided."""
    because: Rejection
    proof: Proof | None = None


class MeasuredSides(Struct, frozen=True, kw_only=True):
    """What fresh trials measured."""

    baseline: Measured
    ladder: Measured


class Confirmed(Speedup, frozen=True, kw_only=True):
    """The whole ladder against the baseline, on fresh trials."""

    fixes: tuple[str, ...]
    confirmed: bool
    failure: ConfirmFailure | None = None
    detail: str | None = None
    processes: tuple[int, ...] = ()
    compile_s: float | None = None
    pays_after_steps: int | None = None
    trials: tuple[int, ...] = ()
    proof: Proof | None = None
    measured: MeasuredSides | None = None


class PatchLine(Struct, frozen=True, kw_only=True):
    """One edit of the patch."""

    fix: str
    file: str
    line: int
    words: str = ""


class ByHand(Struct, frozen=True, kw_only=True):
    """A fix whose edit is left to the user."""

    fix: str
    words: str


class TunedPatch(Speedup, frozen=True, kw_only=True):
    """The fixes as a diff, and what it is worth by itself."""

    path: str | None = None
    text: str | None = None
    edits: tuple[PatchLine, ...] = ()
    by_hand: tuple[ByHand, ...] = ()
    status: PatchStatus = PatchStatus.MEASURED
    detail: str | None = None


class NoteSummary(Struct, frozen=True, kw_only=True):
    """One kind of note of the trials that the ladder rests on, by the worst of them."""

    kind: NoteKind
    detail: str = ""
    trials: int = 0
    of: int = 0


class TunedProgram(Struct, frozen=True, kw_only=True):
    """What was tuned, where and with what."""

    id: str
    folder: str
    program: str
    argv: tuple[str, ...]
    device: str | None
    device_name: str
    torch: str | None
    python: str | None
    git: Any = None
    stepscope: str | None = None
    finished: str | None = None


class Tune(Struct, frozen=True, kw_only=True):
    """The result of a tune."""

    schema: str = SCHEMA
    run: TunedProgram
    machine: Document | None = None
    request: Document
    """The fields of TuneRequest."""
    scout: Document = field(default_factory=dict)
    """The first run: its trial and its findings."""
    baseline: MeasuredBaseline
    ladder: tuple[TunedRung, ...] = ()
    rejected: tuple[RejectedFix, ...] = ()
    untried: tuple[str, ...] = ()
    final: Confirmed | None = None
    command: str | None = None
    patch: TunedPatch | None = None
    search: Document = field(default_factory=dict)
    trials: int = 0
    seconds: float = 0.0
    stopped: StopReason | None = None
    notes: tuple[NoteSummary, ...] = ()


def read_tune(document: Mapping[str, Any] | Tune) -> Tune:
    """The result in a JSON document of this version or the one before. Raises UsageError."""
    if isinstance(document, Tune):
        return document
    try:
        if document.get("schema") == _EARLIER:
            document = _upgraded(document)
        return msgspec.convert(document, Tune)
    except (msgspec.ValidationError, KeyError, TypeError) as problem:
        raise UsageError(f"not the result of a tune that this version reads: {problem}") from None


def _upgraded(document: Mapping[str, Any]) -> Document:
    """tune/1 kept sentences: each becomes the detail of a reason that says so."""
    final, patch = document["final"], document["patch"]
    return {
        **document,
        "ladder": [_with_proof(rung) for rung in document["ladder"]],
        "rejected": [
            _with_proof(one) | {"because": {"reason": RejectReason.RECORDED, "detail": one["why"]}}
            for one in document["rejected"]
        ],
        "final": None if final is None else {**_with_proof(final), "detail": final.get("why")},
        "patch": None if patch is None else {**patch, **_patch_status(patch)},
        "notes": [{"kind": NoteKind.RECORDED, "detail": text} for text in document["notes"]],
    }


def _with_proof(part: Mapping[str, Any]) -> Document:
    proof = part.get("proof")
    if proof is None or "words" not in proof:
        return dict(part)
    because = {"reason": ProofReason.RECORDED, "detail": proof["words"]}
    return {**part, "proof": {**proof, "because": because}}


def _patch_status(patch: Mapping[str, Any]) -> Document:
    if patch.get("speedup") is not None:
        return {"status": PatchStatus.MEASURED}
    missing = PatchStatus.NOT_MEASURED if patch.get("path") else PatchStatus.NO_EDIT
    return {"status": missing, "detail": patch.get("why")}


@dataclass(frozen=True, slots=True)
class TuneOutcome:
    """Everything a tune came to."""

    request: TuneRequest
    folder: Path
    document: Document
    """Of the scout run, with its findings."""
    scout: Trial
    search: SearchResult
    final: Confirmation | None
    proof: Proof | None
    patch: MeasuredPatch | None
    pool: TrialPool
    budget: Budget


def tune_result(outcome: TuneOutcome) -> Tune:
    """The result, also written to the folder."""
    request, search, document = outcome.request, outcome.search, outcome.document
    losses = search.baseline[0].losses if search.baseline else ()
    whole = Tune(
        run=_program(outcome),
        machine=document["config"].get("machine", {}),
        request={**request.identity(), "budget_s": request.budget_s},
        scout={"trial": outcome.scout.number, "findings": _findings(document)},
        baseline=MeasuredBaseline(**_measured(search.baseline, outcome), losses=losses),
        ladder=tuple(_rung(rung, outcome) for rung in search.rungs),
        rejected=tuple(map(_rejected, search.rejected)),
        untried=tuple(search.untried),
        final=_final(outcome),
        command=_command(request, search.fixes) if search.fixes else None,
        patch=None if outcome.patch is None else _patch(outcome.patch),
        search={"trials": search.trials, "seconds": search.seconds},
        trials=outcome.budget.asked,
        seconds=outcome.budget.spent,
        stopped=search.stopped,
        notes=_notes(search),
    )
    part = outcome.folder / f"{DOCUMENT_FILE}.part"
    part.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    part.replace(outcome.folder / DOCUMENT_FILE)
    return whole


def _program(outcome: TuneOutcome) -> TunedProgram:
    run, program = outcome.document["run"], outcome.request.program
    gpu = (outcome.document.get("gpu") or {}).get("name")
    return TunedProgram(
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


def _findings(document: Document) -> list[Document]:
    kept = ("id", "title", "fix", "kind")
    return [
        {name: one[name] for name in kept}
        | {"predicted_speedup": (one["predicted"] or {}).get("speedup")}
        for one in document["findings"]
    ]


def _measured(trials: Sequence[Trial], outcome: TuneOutcome) -> Document:
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


def _known(trials: Sequence[Trial], name: str, how: Any = fmean) -> float | None:
    values = [value for trial in trials if (value := getattr(trial, name)) is not None]
    return float(how(values)) if values else None


def _speedup(found: Comparison | None) -> Document:
    """The fields of `Speedup`."""
    if found is None:
        return {}
    return {
        "speedup": found.ratio, "low": found.low, "high": found.high, "verdict": found.verdict,
    }  # fmt: skip


def _rung(rung: Rung, outcome: TuneOutcome) -> TunedRung:
    candidate = rung.candidate
    name, _, value = candidate.fix.partition("=")
    semantic = candidate.kind == FixKind.SEMANTIC
    return TunedRung(
        fix=name,
        params={"value": value} if value else {},
        label=candidate.label,
        along=candidate.along,
        kind=candidate.kind,
        fixes=rung.fixes,
        **_speedup(rung.comparison),
        cumulative=Speedup(**_speedup(rung.cumulative)),
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
    """A rung's own. One seed cannot say that a numeric fix matches: the whole ladder's proof,
    which has several or fixes its draws to each batch, speaks for it then."""
    own, proven = rung.proof, (ProofState.IDENTICAL, ProofState.MATCHES)
    if own is None or own.state is not ProofState.UNCLEAR:
        return own
    if whole is None or whole.state not in proven:
        return own
    return msgspec.structs.replace(whole, whole_ladder=True)


def _rejected(one: Rejected) -> RejectedFix:
    return RejectedFix(
        fix=one.fix, state=one.state, because=one.why, proof=one.proof, **_speedup(one.comparison)
    )


def _final(outcome: TuneOutcome) -> Confirmed | None:
    final = outcome.final
    if final is None:
        return None
    return Confirmed(
        fixes=final.fixes,
        **_speedup(final.comparison),
        confirmed=final.confirmed,
        failure=final.failure,
        detail=final.detail,
        processes=(len(final.baseline), len(final.ladder)),
        compile_s=final.compile_s,
        pays_after_steps=final.pays_after_steps,
        trials=tuple(trial.number for trial in (*final.baseline, *final.ladder)),
        proof=outcome.proof,
        measured=MeasuredSides(
            baseline=Measured(**_measured(final.baseline, outcome)),
            ladder=Measured(**_measured(final.ladder, outcome)),
        ),
    )


def _patch(measured: MeasuredPatch) -> TunedPatch:
    patch = measured.patch
    return TunedPatch(
        path=measured.path,
        text=patch.text,
        edits=tuple(
            PatchLine(fix=one.fix, file=one.file, line=one.line, words=one.words)
            for one in patch.edits
        ),
        by_hand=tuple(ByHand(fix=fix, words=words) for fix, words in patch.by_hand),
        **_speedup(measured.comparison),
        status=measured.status,
        detail=measured.detail,
    )


def _command(request: TuneRequest, fixes: Sequence[str]) -> str:
    program = request.program
    words = ["stepscope", "run"]
    for fix in fixes:
        words += ["--fix", fix]
    words += ["-m"] if program.module else []
    return shlex.join([*words, program.target, *masked_arguments(program.arguments)])


def _notes(search: SearchResult) -> tuple[NoteSummary, ...]:
    """What makes these trials less reliable, each kind once, by its worst trial."""
    trials = [*search.baseline, *(trial for rung in search.rungs for trial in rung.trials)]
    by_kind: dict[tuple[NoteKind, str], list[TrialNote]] = {}
    for note in (note for trial in trials for note in trial.notes):
        which = "" if note.kind is NoteKind.UNSTABLE else note.detail
        by_kind.setdefault((note.kind, which), []).append(note)
    return tuple(
        NoteSummary(
            kind=kind,
            detail=max(notes, key=lambda note: note.share).detail,
            trials=len(notes),
            of=len(trials),
        )
        for (kind, _), notes in by_kind.items()
    )
