"""Words shared by all formats: names of phases and idle causes, files, commands, outcomes."""

import os
import shlex
from collections.abc import Iterable
from typing import Any

from stepscope.hardware.process_tree import QUIET_SHARE
from stepscope.record.units import format_bytes, format_number, plural
from stepscope.report.story.blocks import Paragraph, Role, Tone
from stepscope.report.text import keep_end

Document = dict[str, Any]

PHASE_NAMES = {
    "data_wait": "data wait",
    "h2d": "copy",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
PHASE_ROLES = {
    "data_wait": Role.DATA,
    "h2d": Role.COPY,
    "wait": Role.IDLE,
    **{name: Role(name) for name in ("forward", "backward", "optimizer", "other", "idle")},
}
RUN_PART_NAMES = {
    "startup": "Python start",
    "epoch_start": "epoch starts",
    "checkpoint": "checkpoints",
    "warmup": "warm-up",
    "window": "recording",
}
"""Other parts are shown by their key."""
DEVICE_WORK = {
    "compute": ("compute", Role.COMPUTE),
    "exposed_communication": ("communication", Role.COMMUNICATION),
    "exposed_copy": ("copies", Role.COPY),
    "idle": ("idle", Role.IDLE),
}
"""Names of device work."""
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
    "synchronisation": "synchronization",
    "copy": "waiting for copies",
    "other_ranks": "waiting for other ranks",
    "between_kernels": "between kernels",
    "unknown": "unexplained",
}


def without_autograd_prefix(where: str) -> str:
    """What the host was in, without autograd's prefix."""
    return where.removeprefix("autograd::engine::evaluate_function: ")


def costliest_place(places: list[Document]) -> str:
    """The costliest place on the host, shortened; empty if unknown."""
    where = places[0]["where"] if places else None
    return keep_end(without_autograd_prefix(where), 25) if where else ""


NO_STEPS = (
    "A step is an optimizer step, a model call or a DataLoader batch;"
    " a loop without these can call stepscope.step() once per iteration."
)


NO_BOTTLENECK = "No bottleneck found: no known fix saves 2% of a step."


def display_path(file: str, program: str | None = None) -> str:
    """A path relative to the program's folder if below it; for a library, from its package on."""
    for packages in ("site-packages", "dist-packages"):
        before, found, after = file.rpartition(f"/{packages}/")
        if found and before:
            return after
    if program and file.endswith(f"/{program.removeprefix('./')}"):
        return program
    home = os.path.dirname(program) if program else ""
    if home and file.startswith(f"{home}/"):
        return file[len(home) + 1 :]
    return "/".join(file.split("/")[-2:]) if file.startswith("/") else file


def location_of(one: Document, program: str | None = None) -> str:
    """`train.py:31`, from optional `file` and `line`; empty if the file is unknown."""
    if not one.get("file"):
        return ""
    name = display_path(one["file"], program)
    return name if one.get("line") is None else f"{name}:{one['line']}"


def shown_program(run: Document) -> str:
    """What trains: the script that ranks run, else the program."""
    return str(run.get("script") or run["program"])


def command_line(run: Document) -> str:
    """The program with its arguments, quoted for a shell; `-m module` stays two words."""
    program = str(run["program"])
    module = program.removeprefix("-m ")
    words = [*(["-m"] if module != program else []), module, *map(str, run["argv"])]
    return " ".join(map(shlex.quote, words))


def runnable(command: str) -> str:
    """A program's command line; "…" if part of it was masked, since it would not run."""
    from stepscope.record.privacy import MASK  # with patterns that take 4 ms to make

    return "…" if MASK in command else command


def rerun_command(document: Document, options: str) -> str:
    """The command that observes the same program with other options."""
    return joined("stepscope run", options, runnable(command_line(document["run"])), by=" ")


def fix_argument(fix: Document) -> str:
    """A fix as `--fix` takes it: `workers=4`."""
    return str(fix["name"]) if fix["value"] is None else f"{fix['name']}={fix['value']}"


def fix_options(fixes: Iterable[str]) -> str:
    """`--fix workers=4 --fix pin`."""
    return " ".join(f"--fix {fix}" for fix in fixes)


def joined(*parts: str | None, by: str = " · ") -> str:
    """The non-empty parts, joined."""
    return by.join(part for part in parts if part)


def torch_text(version: object) -> str:
    """`torch 2.9.1`, without the build suffix; empty if unknown."""
    return f"torch {str(version).partition('+')[0]}" if version else ""


def minute_text(time: object) -> str:
    """`2025-11-18 09:30` from an ISO time; empty if unknown."""
    return str(time or "")[:16].replace("T", " ")


def outcome_sentences(document: Document) -> list[str]:
    """How a run failed, or that it still runs; empty if all is well."""
    run = document["run"]
    code, memory = run["exit_code"], run["out_of_memory"]
    if code is None:
        word = "Still running" if run["under_way"] else "Incomplete: stepscope was killed"
        return [f"{word}. Results so far:"]
    if memory is not None:
        asked = memory.get("requested_bytes")
        text = "Out of GPU memory" if memory["device"] == "cuda" else "Out of memory"
        text += f" allocating {format_bytes(asked)}." if asked else "."
        owners = sorted(
            ((v, k) for k, v in document["memory"]["owners"].items() if v), reverse=True
        )
        largest = [f"{name.replace('_', ' ')} {format_bytes(value)}" for value, name in owners[:3]]
        return [text, f"Largest owners: {', '.join(largest)}."] if largest else [text]
    if run.get("timed_out"):
        return ["Stopped at its --timeout (exit code 124)."]
    if run.get("signal"):
        return [f"Killed by signal {run['signal']} (exit code {code})."]
    if run["error"] is not None and code:
        first = str(run["error"]["text"]).strip().split("\n")[0][:120]
        return [f"Raised {run['error']['type']}{first and f': {first}'}."]
    return [f"Exit code {code}."] if code else []


def fix_outcome(fix: Document) -> Paragraph:
    """What became of a requested fix."""
    applied = fix["state"] == "applied"
    words = fix["where"] if applied else fix["reasons"]
    more = f" and {len(words) - 1} more" if len(words) > 1 else ""
    states = {"applied": ("applied", Tone.GOOD), "broke": ("failed", Tone.BAD)}
    said, tone = states.get(fix["state"], ("not applied", Tone.WARN))
    kind = f" · {fix['kind']}" if applied else ""
    return Paragraph(f"{fix_argument(fix)} {said}: {words[0]}{more}{kind}", tone=tone)


def run_remarks(document: Document) -> list[Paragraph]:
    """Spikes, drift, throttling, other processes on the GPU: one sentence each."""
    steps, gpu = document["steps"], document["gpu"]
    found = []
    spikes = steps["spikes"]
    if spikes:
        found.append(
            f"{plural(steps['spike_count'], 'spike')}: step {spikes[0]['step']:,} took"
            f" {format_number(spikes[0]['ms'])} ms."
        )
    if steps["drift"] and abs(steps["drift"]) > DRIFTING:
        word = "slower" if steps["drift"] > 0 else "faster"
        found.append(f"Steps got {abs(steps['drift']):.0%} {word} over the run.")
    if gpu and gpu["throttled_by"]:
        found.append(f"The GPU was throttled: {', '.join(gpu['throttled_by'])}.")
    if gpu and gpu["other_processes"]:
        found.append("Another process used the GPU.")
    return [Paragraph(text, tone=Tone.WARN) for text in found]


DRIFTING = 0.05  # of a step's time, over the run: smaller drift is not mentioned
_CROWDED = 0.85  # of the usable cores: beyond this, processes wait for each other


def busy_machine(document: Document) -> list[Paragraph]:
    """A note if other processes' use of the cores slowed the steps."""
    host, machine = document.get("host") or {}, document["config"].get("machine") or {}
    cpu = machine.get("cpu") or {}
    usable, others = cpu.get("usable_cores") or 0, (host.get("other_cpu_percent") or 0) / 100
    own = (host.get("cpu_percent") or 0) / 100
    if not usable or others <= QUIET_SHARE * usable or own + others < _CROWDED * usable:
        return []
    text = f"Busy machine: other processes used {others:.1f} of {usable:g} cores; times include"
    return [Paragraph(f"{text} waiting for them.", tone=Tone.WARN)]


def step_noun(document: Document) -> str:
    """What this run's steps are: `step`, `model call`, `batch`."""
    return {"inference": "model call", "batches": "batch"}.get(document["steps"]["what"], "step")


def counted_steps(document: Document) -> str:
    """`412 steps`, `80 model calls`, `12 steps (inferred)`."""
    steps, word = document["steps"], step_noun(document)
    count = plural(steps["count"], word, "batches" if steps["what"] == "batches" else None)
    return count + (" (inferred)" if steps["inferred"] and word == "step" else "")


def path_from_here(folder: str) -> str:
    """A path relative to the current folder if below it."""
    relative = os.path.relpath(folder)
    return os.path.abspath(folder) if relative.startswith("..") else relative


def run_reference(run: Document) -> str:
    """The run's name for `show` and `report`: its id if that finds it, else its folder."""
    path = path_from_here(run["folder"])
    return str(run["id"]) if path.startswith(".stepscope/") else shlex.quote(path)


def places_text(places: list[Document], program: str | None = None) -> str:
    """`train.py:58, :60`: at most three places, without repeating the file."""
    known = [at for at in places if at["file"] and at["line"]]
    found = dict.fromkeys((display_path(at["file"], program), at["line"]) for at in known)
    shown: list[str] = []
    before = ""
    for file, line in list(found)[:3]:
        shown.append(f":{line}" if file == before else f"{file}:{line}")
        before = file
    return ", ".join(shown)
