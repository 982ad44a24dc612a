"""The run folder of a finished trial: maps paths back to the user's, trims output, and reads
everything into the trial's record."""

import gzip
import json
import os
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace as replace_fields

from stepscope.analyze.run.document import GpuTotals, to_json
from stepscope.analyze.run.records import RunRecords
from stepscope.analyze.run.steps import Rows, Steps, assemble_steps
from stepscope.analyze.run.summary import summarize
from stepscope.launch.child import Outcome
from stepscope.measure.speed import (
    FEWEST_STEADY,
    LoaderTiming,
    Speed,
    read_loader_timing,
    steady_speed,
)
from stepscope.measure.trial.final_state import PRINTED_FILE, SAVED_FILE
from stepscope.measure.trial.record import ProofRecord, Trial, TrialRequest
from stepscope.measure.trial.status import classify_trial, wall_seconds
from stepscope.record.facts import AutoFact, Facts, ProofFact
from stepscope.record.privacy import masked_text
from stepscope.record.row_log import RowKind
from stepscope.record.trial import NoteKind, TrialNote
from stepscope.stats.intervals import why_unstable
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table

OUTPUT_FILE, ERRORS_FILE = "output.txt", "errors.txt"
_TAIL = 1 << 20
_LONGEST = 300


def tidy_folder(folder: Path, scratch: Path, original: Path) -> None:
    """Rename paths in the scratch copy to the user's own; tidy the output."""
    for path in (folder / "facts.jsonl", folder / "sources.json"):
        if path.is_file():
            path.write_bytes(_renamed(path.read_bytes(), scratch, original))
    for path in folder.glob("*.pt.trace.json.gz"):
        with gzip.open(path, "rb") as file:
            content = file.read()
        renamed = _renamed(content, scratch, original)
        if renamed != content:
            path.write_bytes(gzip.compress(renamed, compresslevel=5))
    tidy_output(folder / OUTPUT_FILE)
    tidy_output(folder / PRINTED_FILE)


def join_output(folder: Path) -> None:
    """Append the program's stderr to its printed output. Raises OSError on a full disk."""
    errors = folder / ERRORS_FILE
    with open(errors, "rb") as said, open(folder / OUTPUT_FILE, "ab") as output:
        shutil.copyfileobj(said, output)
    errors.unlink()


def tidy_output(path: Path) -> None:
    """Keep the end of a program's output, with secrets masked."""
    with suppress(OSError):
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            tail = os.fsdecode(file.read())
        path.write_bytes(os.fsencode(masked_text(tail)))


def last_output_line(folder: Path) -> str:
    """The last line of the program's output, with secrets masked."""
    try:
        content = (folder / OUTPUT_FILE).read_bytes()[-8192:]
    except OSError:
        return ""
    lines = [line.strip() for line in content.decode(errors="replace").split("\n") if line.strip()]
    return masked_text(lines[-1])[:_LONGEST] if lines else ""


def _renamed(content: bytes, scratch: Path, original: Path) -> bytes:
    before, after = f"{scratch}/", f"{original}/"
    content = content.replace(os.fsencode(before), os.fsencode(after))
    before, after = (json.dumps(path)[1:-1] for path in (before, after))
    return content.replace(os.fsencode(before), os.fsencode(after))


def training_events(rows: Rows, steps: Steps) -> ProofRecord:
    """When epochs ended, evaluations and saves occurred, and batches were short; only events
    followed by another step count."""
    rows = rows[rows["end_ns"] > 0] if rows.size else rows
    if not len(steps) or not rows.size:
        return ProofRecord()
    kind = rows["kind"].astype(int)
    after = np.searchsorted(steps.end, rows["end_ns"], side="left")
    after += np.isin(rows["end_ns"], steps.end)  # the row that ends a step belongs to it
    evaluating = (kind == RowKind.EVAL) & (steps.what == "training")
    validating = (kind == RowKind.EPOCH) & np.append(evaluating[1:], False)
    short = (steps.samples > 0) & (steps.samples < np.median(steps.samples))

    def followed(chosen: npt.NDArray[np.bool_]) -> tuple[int, ...]:
        return tuple(int(step) for step in np.unique(after[chosen]) if 0 < step < len(steps))

    return ProofRecord(
        epochs=followed((kind == RowKind.EPOCH) & ~validating),
        evaluations=followed(evaluating),
        saves=followed((kind == RowKind.SAVE) | (rows["save_ns"] > 0)),
        short_batches=tuple((np.flatnonzero(short) + 1).tolist()),
    )


OUTPUTS_FILE = "outputs.npz"


def read_trial(request: TrialRequest, number: int, folder: Path, outcome: Outcome) -> Trial:
    """The record of a trial that has ended. Raises BrokenRun if its folder cannot be read."""
    records = RunRecords(folder)
    run = summarize(records)
    steps, rows, facts = read_steps(folder, outcome.started_ns)
    measured = steady_speed(steps, read_loader_timing(rows, facts, len(steps)))
    held = facts.last(AutoFact) if request.contests else None
    if held is not None:  # steps with and without candidates say nothing of either
        measured = Speed((), measured.samples_per_step, 0)
    steady, said = len(measured.step_ms), last_output_line(folder)
    end = classify_trial(request, outcome, to_json(run), steady, said, held)
    return Trial(
        request=request,
        number=number,
        **end._asdict(),
        step_ms=measured.step_ms if steady >= FEWEST_STEADY or request.window else (),
        steady=steady,
        samples_per_step=measured.samples_per_step,
        steps=len(steps),
        seconds=wall_seconds(outcome),
        compile_s=steps.account.get("compile", 0.0) / 1e9 or None,
        peak_memory_bytes=run.memory.peak_bytes,
        gpu_busy=run.gpu.busy_fraction if run.gpu else None,
        energy_j_per_step=run.gpu.energy_j_per_step if run.gpu else None,
        fixes=tuple(records.fixes),
        losses=() if held else tuple(run.losses),
        proof=_proof(rows, steps, facts, folder) if request.proof else ProofRecord(),
        what=steps.what,
        notes=_notes(run.gpu, measured),
        contests=tuple(run.auto.contests) if held and run.auto else (),
        trying=tuple(held.trying or ()) if held else (),
        stopped=held.stopped if held else None,
    )


def read_steps(folder: Path, started_ns: float) -> tuple[Steps, Rows, Facts]:
    """A run's steps, their rows, and its facts."""
    rows = read_table(folder / "rows.npy")
    return assemble_steps(rows, started_ns), rows, read_facts(folder / "facts.jsonl")


def read_speed(folder: Path, started_ns: float) -> tuple[Speed, LoaderTiming]:
    """What `trial_steps` needs from the scout run."""
    steps, rows, facts = read_steps(folder, started_ns)
    timing = read_loader_timing(rows, facts, len(steps))
    start_ms = float(steps.epoch_start.max(initial=0.0)) / 1e6
    return steady_speed(steps, timing), replace(timing, start_ms=start_ms)


def _proof(rows: Rows, steps: Steps, facts: Facts, folder: Path) -> ProofRecord:
    last = facts.last(ProofFact) or ProofFact(grad_norms=[], rates=[], loads=[])
    return replace_fields(
        training_events(rows, steps),
        grad_norms=tuple(last.grad_norms),
        rates=tuple(last.rates),
        loads=tuple(last.loads),
        batches=tuple(last.batches or ()),
        outputs=OUTPUTS_FILE if (folder / OUTPUTS_FILE).is_file() else None,
        ending=(folder / SAVED_FILE).is_file(),
    )


def _notes(gpu: GpuTotals | None, measured: Speed) -> tuple[TrialNote, ...]:
    """What makes the trial less reliable."""
    throttled = gpu.throttled_by if gpu else ()
    notes = [TrialNote(NoteKind.THROTTLED, reason) for reason in throttled]
    if gpu and gpu.other_processes:
        notes.append(TrialNote(NoteKind.SHARED_GPU))
    if how := why_unstable([measured.step_ms]):
        spread = pstdev(measured.step_ms) / fmean(measured.step_ms)
        notes.append(TrialNote(NoteKind.UNSTABLE, how, spread))
    return tuple(notes)
