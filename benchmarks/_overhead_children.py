"""The processes that are measured: a program bare or observed, and blocks inside one process."""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from _overhead_stats import mirrored_orders, steady

SOURCE = Path(__file__).resolve().parent.parent / "src"
PROGRAMS = Path(__file__).resolve().parent / "programs"
VARIANTS: dict[str, list[str] | None] = {"bare": None, "observed": ["--no-window"], "windowed": []}
RECORDINGS = 2  # among the blocks of a process
_PATIENCE_S = 180.0  # beyond the time planned, for a child to end


@dataclass(frozen=True)
class Shape:
    """How many steps make a block and a process."""

    block: int
    lead: int
    """First steps of every block, left out: the interpreter's caches settle again."""
    process: int
    process_block: int
    warmup: int
    """Steps of a process left out; the default window lies within them."""


# By about how many milliseconds a step takes. Short blocks keep neighbours close in time; a GPU's
# queue fills anew in each, so they are longer.
SHAPES = {
    ("cpu", 1): Shape(40, 10, process=2000, process_block=100, warmup=400),
    ("cpu", 7): Shape(10, 3, process=300, process_block=20, warmup=120),
    ("cpu", 40): Shape(2, 1, process=160, process_block=10, warmup=100),
    ("cuda", 1): Shape(100, 20, process=2000, process_block=100, warmup=400),
    ("cuda", 7): Shape(20, 5, process=300, process_block=20, warmup=120),
    ("cuda", 40): Shape(8, 2, process=160, process_block=10, warmup=100),
}
PROGRAM_MS = {"mlp": 1, "wide cnn": 40}
_USUAL_MS = 7


@dataclass(frozen=True)
class Setting:
    """What every process of a comparison has in common."""

    program: str
    device: str
    cores: list[int]
    size: int | None = None
    """Of the model or batch; None: still to be calibrated."""

    @property
    def ms(self) -> int:
        """About how long a step takes."""
        return PROGRAM_MS.get(self.program, _USUAL_MS)

    @property
    def shape(self) -> Shape:
        """How its steps are cut."""
        return SHAPES[self.device, self.ms]

    def arguments(self) -> list[str]:
        found = ["--program", self.program, "--device", self.device]
        if self.size is not None:
            found += ["--size", str(self.size)]
        return [*found, "--cores", *map(str, self.cores)]


def cores_for(device: str) -> list[int]:
    """The last core for a program on the CPU, the last two of four or more beside a GPU."""
    usable = sorted(os.sched_getaffinity(0))
    if device == "cpu":
        return usable[-1:] if len(usable) > 1 else []
    return usable[-2:] if len(usable) > 3 else []


def child(command: list[str], planned_s: float) -> dict[str, Any]:
    """The JSON that a program prints as its last line. Raises RuntimeError with its stderr."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=planned_s + _PATIENCE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in found:
        raise MissingProgramError(found["missing"])
    return found


class MissingProgramError(Exception):
    """What a program needs is not here."""


def program(name: str) -> list[str]:
    """The command that runs one of the programs."""
    return [sys.executable, str(PROGRAMS / name)]


def blocks(setting: Setting, seconds: float, rounds: int, seed: int) -> dict[str, Any]:
    """Blocks inside one process, for so many seconds besides its start."""
    shape = setting.shape
    limits = ["--rounds", str(rounds), "--seconds", f"{seconds:.1f}", "--seed", str(seed)]
    counts = ["--steps", str(shape.block), "--lead", str(shape.lead)]
    counts += ["--recordings", str(RECORDINGS)]
    return child([*program("blocks.py"), *limits, *counts, *setting.arguments()], seconds)


def process(setting: Setting, variant: str) -> dict[str, Any]:
    """One process: its block times, and what the observer saw. Raises if that is not all of it."""
    shape = setting.shape
    options = VARIANTS[variant]
    run = [str(PROGRAMS / "steps.py"), "--steps", str(shape.process)]
    run += ["--block", str(shape.process_block), *setting.arguments()]
    planned_s = shape.process * setting.ms / 1000
    if options is None:
        return child([sys.executable, *run], planned_s)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        scope = [sys.executable, "-m", "stepscope.cli.main", "run", *options, "--quiet"]
        found = child([*scope, "--out", str(out), *run], planned_s)
        return found | {"observed": _seen(out, shape)}


def _seen(folder: Path, shape: Shape) -> dict[str, Any]:
    from stepscope.record.facts import EndFact, ProblemFact, WindowFact
    from stepscope.results.load import load
    from stepscope.store.json_lines import read_facts

    facts = read_facts(folder / "facts.jsonl")
    steps = [fact.steps for fact in facts.all(EndFact)]
    windows = [[fact.first, fact.last] for fact in facts.all(WindowFact)]
    if problems := facts.all(ProblemFact):
        raise RuntimeError(f"observing met a problem: {problems}")
    if steps != [shape.process]:
        raise RuntimeError(f"of {shape.process} steps the observer saw {steps}")
    if any(last > shape.warmup for _, last in windows):
        raise RuntimeError(f"a window lies in the steady part: {windows}")
    document = load(folder).document
    told = document["steps"]
    return {
        "steps": steps[0],
        "windows": windows,
        "mean_ms": told["mean_ms"],
        "median_ms": told["median_ms"],
        "clocked_steps": told["clocked_steps"],
        "overhead": document["overhead"],
    }


def across(setting: Setting, seconds: float, most: int, seed: int) -> list[list[dict[str, Any]]]:
    """Rounds of one process per variant, in the order they ran: one, and more while time lasts."""
    began = time.monotonic()
    rounds: list[list[dict[str, Any]]] = []
    longest = 0.0
    for order in mirrored_orders(tuple(VARIANTS), most, seed):
        begun = time.monotonic()
        if rounds and begun - began + longest > seconds:
            break
        rounds.append([{"variant": variant, **process(setting, variant)} for variant in order])
        longest = max(longest, time.monotonic() - begun)
    return rounds


def bare_step_ms(ran: dict[str, Any], shape: Shape) -> float:
    """The mean step of a process after its warm-up."""
    blocks = steady(ran["block_ns"], ran["block_steps"], shape.warmup)
    return float(sum(blocks) / len(blocks) / ran["block_steps"] / 1e6)


def steady_ns(ran: dict[str, Any], shape: Shape) -> float:
    """A process's usual block time after the warm-up, in nanoseconds."""
    return float(median(steady(ran["block_ns"], ran["block_steps"], shape.warmup)))


def warmup_s(ran: dict[str, Any], shape: Shape) -> float:
    """Seconds a process spent in its warm-up blocks, which hold the window if there is one."""
    kept = len(steady(ran["block_ns"], ran["block_steps"], shape.warmup))
    return float(sum(ran["block_ns"][: len(ran["block_ns"]) - kept])) / 1e9
