"""The run folder of a trial once it has ended: paths mapped back to the user's own, output trimmed,
and everything read into the trial's record.
"""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np

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
from stepscope.measure.trial import Trial, TrialRequest
from stepscope.measure.trial_status import classify_trial, wall_seconds
from stepscope.record.facts import Facts, ProofFact
from stepscope.record.row_log import RowKind
from stepscope.record.trial import NoteKind, TrialNote
from stepscope.stats.stability import why_unstable
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table

OUTPUT_FILE = "output.txt"
_TAIL = 1 << 20
_LONGEST = 300
_TEXTS = ("facts.jsonl", "sources.json")
_TRACES = "*.pt.trace.json.gz"


def tidy_folder(folder: Path, scratch: Path, original: Path) -> None:
    """Rename paths in the scratch copy to the user's own; trim the output."""
    for name in _TEXTS:
        path = folder / name
        if path.is_file():
            path.write_bytes(_renamed(path.read_bytes(), scratch, original))
    for path in folder.glob(_TRACES):
        with gzip.open(path, "rb") as file:
            content = file.read()
        renamed = _renamed(content, scratch, original)
        if renamed != content:
            path.write_bytes(gzip.compress(renamed, compresslevel=5))
    _cut(folder / OUTPUT_FILE)


def last_output_line(folder: Path) -> str:
    """The last line of the program's output."""
    try:
        content = (folder / OUTPUT_FILE).read_bytes()[-8192:]
    except OSError:
        return ""
    lines = [line.strip() for line in content.decode(errors="replace").split("\n") if line.strip()]
    return lines[-1][:_LONGEST] if lines else ""


def _renamed(content: bytes, scratch: Path, original: Path) -> bytes:
    for written in (str, _as_json):
        content = content.replace(
            os.fsencode(written(scratch) + "/"), os.fsencode(written(original) + "/")
        )
    return content


def _as_json(path: Path) -> str:
    return json.dumps(str(path))[1:-1]


def _cut(path: Path) -> None:
    """Keep the end of the program's output."""
    try:
        if path.stat().st_size > _TAIL:
            with open(path, "rb") as file:
                file.seek(-_TAIL, os.SEEK_END)
                tail = file.read()
            path.write_bytes(tail)
    except OSError:
        pass


def training_events(rows: Rows, steps: Steps) -> dict[str, list[int]]:
    """Steps count from 1. `epochs`, `evaluations` and `saves`: the steps after which one came,
    among those that another step followed; `short_batches`: steps with fewer samples than usual.
    """
    rows = rows[rows["end_ns"] > 0] if rows.size else rows
    if not len(steps) or not rows.size:
        return {"epochs": [], "evaluations": [], "saves": [], "short_batches": []}
    kind = rows["kind"].astype(int)
    after = np.searchsorted(steps.end, rows["end_ns"], side="left")
    after += np.isin(rows["end_ns"], steps.end)  # the row that ends a step is part of it
    evaluating = (kind == RowKind.EVAL) & (steps.what == "training")
    validating = (kind == RowKind.EPOCH) & np.append(evaluating[1:], False)
    count = len(steps)
    return {
        "epochs": _between(after[(kind == RowKind.EPOCH) & ~validating], count),
        "evaluations": _between(after[evaluating], count),
        "saves": _between(after[(kind == RowKind.SAVE) | (rows["save_ns"] > 0)], count),
        "short_batches": _short(steps),
    }


def _between(after: Any, count: int) -> list[int]:
    return [int(step) for step in np.unique(after) if 0 < step < count]


def _short(steps: Steps) -> list[int]:
    usual = float(np.median(steps.samples))
    return [
        int(place) + 1 for place in np.flatnonzero((steps.samples > 0) & (steps.samples < usual))
    ]


OUTPUTS_FILE = "outputs.npz"


def read_trial(request: TrialRequest, number: int, folder: Path, outcome: Outcome) -> Trial:
    """The record of a trial that has ended. Raises BrokenRun where its folder cannot be read."""
    records = RunRecords(folder)
    run = summarize(records)
    steps, rows, facts = read_steps(folder, outcome.started_ns)
    measured = steady_speed(steps, read_loader_timing(rows, facts, len(steps)))
    steady = len(measured.step_ms)
    end = classify_trial(request, outcome, to_json(run), steady, last_output_line(folder))
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
        losses=tuple(run.losses),
        proof=_proof(rows, steps, facts, folder) if request.proof else {},
        what=steps.what,
        notes=_notes(run.gpu, measured),
    )


def read_steps(folder: Path, started_ns: float) -> tuple[Steps, Rows, Facts]:
    """The steps of a run, the rows they are made of, and its facts."""
    rows = read_table(folder / "rows.npy")
    return assemble_steps(rows, started_ns), rows, read_facts(folder / "facts.jsonl")


def read_speed(folder: Path, started_ns: float) -> tuple[Speed, LoaderTiming]:
    """What `trial_steps` needs from the scout run."""
    steps, rows, facts = read_steps(folder, started_ns)
    feed = read_loader_timing(rows, facts, len(steps))
    start_ms = float(steps.epoch_start.max(initial=0.0)) / 1e6
    return steady_speed(steps, feed), replace(feed, start_ms=start_ms)


def _proof(rows: Rows, steps: Steps, facts: Facts, folder: Path) -> dict[str, Any]:
    last = facts.last(ProofFact)
    kept = last.to_json() if last else {}
    outputs = {"outputs": OUTPUTS_FILE} if (folder / OUTPUTS_FILE).is_file() else {}
    return {**kept, **training_events(rows, steps), **outputs}


def _notes(gpu: GpuTotals | None, measured: Speed) -> tuple[TrialNote, ...]:
    """What makes the trial less reliable."""
    throttled = gpu.throttled_by if gpu else ()
    notes = [TrialNote(NoteKind.THROTTLED, reason) for reason in throttled]
    if gpu and gpu.other_processes:
        notes.append(TrialNote(NoteKind.SHARED_GPU))
    if how := why_unstable(measured.step_ms):
        spread = pstdev(measured.step_ms) / fmean(measured.step_ms)
        notes.append(TrialNote(NoteKind.UNSTABLE, how, spread))
    return tuple(notes)
