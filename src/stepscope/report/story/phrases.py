"""The words every format shares: names of phases and idle causes, files and commands, units, how a
run ended.
"""

import os
import shlex
from typing import Any

from stepscope.record.privacy import MASK
from stepscope.report.text import format_bytes, format_number, keep_end, plural, safe

PHASE_NAMES = {
    "data_wait": "data wait",
    "h2d": "copy",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
RUN_PART_NAMES = {
    "startup": "Python start",
    "epoch_start": "epoch starts",
    "checkpoint": "checkpoints",
    "warmup": "warm-up",
    "window": "recording",
}
"""What is not here is called by its key."""
DEVICE_WORK_NAMES = {
    "compute": "computing",
    "exposed_communication": "communicating",
    "exposed_copy": "copying",
}
"""What a device does, beside being idle."""
STEP_SOURCES = {
    "ProfilerStep": "marked by the profiler",
    "annotation": "from annotations",
    "optimizer": "from optimizer steps",
    "whole": "",
}
"""How the steps of a recording were found."""


IDLE_CAUSES = {
    "loader": "waiting for the data loader",
    "host": "the host launches too slowly",
    "synchronisation": "synchronisations",
    "copy": "waiting for copies",
    "other_ranks": "waiting for other ranks",
    "between_kernels": "between kernels",
    "unknown": "not explained",
}
_AUTOGRAD = "autograd::engine::evaluate_function: "


def without_autograd_prefix(where: str) -> str:
    """What the host was in, without what autograd puts before every one of its nodes."""
    return where.removeprefix(_AUTOGRAD)


def costliest_place(places: list[dict[str, Any]]) -> str:
    """The costliest place on the host, short; empty where none is known."""
    where = places[0]["where"] if places else None
    return keep_end(without_autograd_prefix(safe(where)), 25) if where else ""


NO_STEPS = (
    "Steps are seen where an optimizer steps, a model is called or a DataLoader delivers;"
    " a loop that hides them can call stepscope.step() once an iteration."
)
_PACKAGES = ("site-packages", "dist-packages")


def display_path(file: str, program: str | None = None) -> str:
    """Relative to the program's folder where it lies below; a library's from its package on."""
    for packages in _PACKAGES:
        before, found, after = file.rpartition(f"/{packages}/")
        if found and before:
            return after
    if program and file.endswith(f"/{program.removeprefix('./')}"):
        return program
    home = os.path.dirname(program) if program else ""
    if home and file.startswith(f"{home}/"):
        return file[len(home) + 1 :]
    return "/".join(file.split("/")[-2:]) if file.startswith("/") else file


def display_location(file: str | None, line: int | None, program: str | None = None) -> str:
    """`train.py:31`; empty where no file is known."""
    if not file:
        return ""
    name = display_path(file, program)
    return name if line is None else f"{name}:{line}"


def command_line(run: dict[str, Any]) -> str:
    """The program with its arguments as a shell takes them; `-m module` stays two words."""
    program = str(run["program"])
    module = program.removeprefix("-m ")
    words = [*(["-m"] if module != program else []), module, *map(str, run["argv"])]
    return " ".join(map(shlex.quote, words))


def rerun_command(document: dict[str, Any], options: str) -> str:
    """The command that observes the same program with other options."""
    told = command_line(document["run"])
    told = "…" if MASK in told else told
    return " ".join(part for part in ("stepscope run", options, told) if part)


Document = dict[str, Any]


def outcome_sentences(document: Document) -> list[str]:
    """How a run that did not end well ended, or that it still runs; nothing where all is well."""
    run = document["run"]
    if run["exit_code"] is None:
        word = "still running" if run["under_way"] else "not finished: its observer was killed"
        return [f"{word}; what follows is what is known so far"]
    if run["out_of_memory"] is not None:
        return _out_of_memory(document, run["out_of_memory"])
    if run.get("timed_out"):
        return ["ended at its --timeout (exit code 124)"]
    if run.get("signal"):
        return [f"ended by signal {run['signal']} (exit code {run['exit_code']})"]
    if run["error"] is not None and run["exit_code"]:
        first = str(run["error"]["text"]).strip().split("\n")[0][:120]
        return [f"raised {run['error']['type']}: {first}"]
    return [f"exit code {run['exit_code']}"] if run["exit_code"] else []


def _out_of_memory(document: Document, memory: Document) -> list[str]:
    owners = document["memory"]["owners"]
    named = sorted(((v, k) for k, v in owners.items() if v), reverse=True)[:3]
    largest = ", ".join(f"{name.replace('_', ' ')} {format_bytes(value)}" for value, name in named)
    place = "GPU memory" if memory["device"] == "cuda" else "memory"
    asked = memory.get("requested_bytes")
    text = f"out of {place}" + (f": {format_bytes(asked)} more were asked for" if asked else "")
    return [text, f"largest owners: {largest}"] if largest else [text]


def fix_outcome(fix: Document) -> str:
    """What became of a fix that was asked for."""
    value = f"={fix['value']}" if fix["value"] is not None else ""
    good = fix["state"] == "applied"
    words = fix["where"] if good else fix["reasons"]
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    text = f"{words[0]}{more}" + (f" · {fix['kind']}" if good else "")
    word = {"applied": "with", "broke": "broke with"}.get(fix["state"], "without")
    return f"{word} {fix['name']}{value}: {text}"


def run_remarks(document: Document) -> list[str]:
    """Spikes, drift, throttling, company on the GPU."""
    steps, gpu = document["steps"], document["gpu"]
    found = []
    spikes = steps["spikes"]
    if spikes:
        found.append(
            f"{plural(steps['spike_count'], 'spike')}: step {spikes[0]['step']:,} took"
            f" {format_number(spikes[0]['ms'])} ms"
        )
    if steps["drift"] and abs(steps["drift"]) > 0.05:
        word = "slower" if steps["drift"] > 0 else "faster"
        found.append(f"steps got {abs(steps['drift']):.0%} {word} over the run")
    if gpu and gpu["throttled_by"]:
        found.append(f"the GPU was throttled: {', '.join(gpu['throttled_by'])}")
    if gpu and gpu["other_processes"]:
        found.append("another process used the GPU")
    return found


def step_noun(document: Document) -> str:
    """What a step of this run is: `step`, `model call`, `batch`."""
    return {"inference": "model call", "batches": "batch"}.get(document["steps"]["what"], "step")


def counted_steps(document: Document) -> str:
    """`412 steps`, `80 model calls`, `12 steps (inferred)`."""
    steps, word = document["steps"], step_noun(document)
    count = plural(steps["count"], word, {"batch": "batches"}.get(word))
    return count + (" (inferred)" if steps["inferred"] and word == "step" else "")
