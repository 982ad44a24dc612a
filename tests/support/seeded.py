"""A program written by a test, run once as a trial is: observed, under an imposed seed, forked."""

import atexit
import functools
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from time import monotonic_ns
from typing import Any

from stepscope.analyze.run.steps import assemble_steps
from stepscope.launch.fork_server import ForkServer
from stepscope.launch.program import Program
from stepscope.record.facts import Facts, ProofFact
from stepscope.record.probe_options import ProbeOptions
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table


@dataclass(frozen=True)
class Seeded:
    """What is left of one such run."""

    folder: Path
    out: str
    """With what it wrote to stderr."""
    losses: list[float | None]
    """One a step, None where none was seen."""
    facts: Facts

    @property
    def proof(self) -> dict[str, Any]:
        return self.facts.last(ProofFact).to_json()


def trial(folder: Path, source: str, **options: Any) -> Seeded:
    """Run it in a child and read its folder; the program must end well."""
    folder.mkdir(parents=True)
    program = folder / "program.py"
    program.write_text(dedent(source))
    asked = ProbeOptions(str(folder), monotonic_ns(), window=0, stacks=0, **options)
    with (folder / "output.txt").open("w+b") as output:
        to_run = Program(str(program), (), module=False)
        running = _fork_server().start(to_run, asked.to_json(), output, folder)
        assert running is not None
        code = running.wait(120)
        output.seek(0)
        said = output.read().decode()
    assert code == 0, said
    assert "stepscope:" not in said, said
    rows = read_table(folder / "rows.npy")
    losses = [
        None if math.isnan(loss) else float(loss)
        for loss in assemble_steps(rows, rows["end_ns"][0]).loss
    ]
    return Seeded(folder, said, losses, read_facts(folder / "facts.jsonl"))


@functools.cache
def _fork_server() -> ForkServer:
    """One for all tests of this process."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    made = ForkServer(environ, Path.cwd())
    atexit.register(made.close)
    return made


def plain(folder: Path, source: str) -> str:
    """What the program prints under plain Python."""
    folder.mkdir(parents=True)
    program = folder / "program.py"
    program.write_text(dedent(source))
    done = subprocess.run(
        [sys.executable, str(program)], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
