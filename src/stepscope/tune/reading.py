"""From the run folder of a trial to its record."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.analyze.steps import Rows, Steps, assemble
from stepscope.analyze.summary import summarize
from stepscope.launch.child import Outcome
from stepscope.stats.steady import unstable
from stepscope.store.facts import read_facts
from stepscope.store.table import read_table
from stepscope.tune.ask import Ask
from stepscope.tune.ending import ending, seconds
from stepscope.tune.feed import Feed, read_feed
from stepscope.tune.folder import last_line
from stepscope.tune.occasions import occasions
from stepscope.tune.speed import LEAST, Speed, speed
from stepscope.tune.trial import Trial

OUTPUTS = "outputs.npz"
Facts = Mapping[str, Sequence[Mapping[str, Any]]]


def read_trial(ask: Ask, number: int, folder: Path, outcome: Outcome) -> Trial:
    """The record of a trial that has ended. Raises BrokenRun where its folder cannot be read."""
    document = summarize(folder)
    steps, rows, facts = read_steps(folder, outcome.started_ns)
    measured = speed(steps, read_feed(rows, facts, len(steps)))
    status, why, blame = ending(ask, outcome, document, len(measured.step_ms), last_line(folder))
    gpu = document["gpu"] or {}
    return Trial(
        ask=ask,
        number=number,
        status=status,
        why=why,
        blame=blame,
        step_ms=measured.step_ms if len(measured.step_ms) >= LEAST or ask.window else (),
        samples_per_step=measured.samples_per_step,
        steps=len(steps),
        seconds=seconds(outcome),
        compile_s=steps.account.get("compile", 0.0) / 1e9 or None,
        peak_memory_bytes=document["memory"]["peak_bytes"],
        gpu_busy=gpu.get("busy_fraction"),
        energy_j_per_step=gpu.get("energy_j_per_step"),
        fixes=tuple(document["fixes"]),
        losses=tuple(document["losses"]),
        proof=_proof(rows, steps, facts, folder) if ask.proof else {},
        what=steps.what,
        notes=_notes(gpu, measured),
    )


def read_steps(folder: Path, started_ns: float) -> tuple[Steps, Rows, Facts]:
    """The steps of a run, the rows they are made of, and its facts."""
    rows = read_table(folder / "rows.npy")
    return assemble(rows, started_ns), rows, read_facts(folder / "facts.jsonl")


def scouted(folder: Path, started_ns: float) -> tuple[Speed, Feed]:
    """What `steps_needed` wants to know of a first look at the program."""
    steps, rows, facts = read_steps(folder, started_ns)
    feed = read_feed(rows, facts, len(steps))
    start_ms = float(steps.epoch_start.max(initial=0.0)) / 1e6
    return speed(steps, feed), replace(feed, start_ms=start_ms)


def _proof(rows: Rows, steps: Steps, facts: Facts, folder: Path) -> dict[str, Any]:
    kept = dict(facts["proof"][-1]) if facts["proof"] else {}
    outputs = {"outputs": OUTPUTS} if (folder / OUTPUTS).is_file() else {}
    return {**kept, **occasions(rows, steps), **outputs}


def _notes(gpu: Mapping[str, Any], measured: Speed) -> tuple[str, ...]:
    """What makes the trial less to be relied on."""
    notes = [f"clocks held down by {reason}" for reason in gpu.get("throttled_by") or ()]
    if gpu.get("other_processes"):
        notes.append("other processes on the GPU")
    if why := unstable(measured.step_ms):
        notes.append(why)
    return tuple(notes)
