"""Places in files, and the command line, as a report shows them: the same wherever it is opened."""

import os
import shlex
from typing import Any

from stepscope.record.privacy import MASK

NO_STEPS = (
    "Steps are seen where an optimizer steps, a model is called or a DataLoader delivers;"
    " a loop that hides them can call stepscope.step() once an iteration."
)
_PACKAGES = ("site-packages", "dist-packages")


def shown_file(file: str, program: str | None = None) -> str:
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


def shown_place(file: str | None, line: int | None, program: str | None = None) -> str:
    """`train.py:31`; empty where no file is known."""
    if not file:
        return ""
    name = shown_file(file, program)
    return name if line is None else f"{name}:{line}"


def command_line(run: dict[str, Any]) -> str:
    """The program with its arguments as a shell takes them; `-m module` stays two words."""
    program = str(run["program"])
    module = program.removeprefix("-m ")
    words = [*(["-m"] if module != program else []), module, *map(str, run["argv"])]
    return " ".join(map(shlex.quote, words))


def run_again(document: dict[str, Any], options: str) -> str:
    """The command that observes the same program with other options."""
    told = command_line(document["run"])
    told = "…" if MASK in told else told
    return " ".join(part for part in ("stepscope run", options, told) if part)
