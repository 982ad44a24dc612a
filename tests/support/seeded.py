"""A program written by a test, run once as a trial is: observed, under an imposed seed, forked."""

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from time import monotonic_ns
from typing import Any

import warm

from stepscope.analyze.run.steps import assemble_steps
from stepscope.launch.program import child_environment
from stepscope.record.facts import Facts, ProofFact
from stepscope.record.probe_options import ProbeOptions
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table

_ENVIRON = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


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
    environ = child_environment(asked.to_json(), _ENVIRON)
    done = warm.execute([sys.executable, str(program)], folder, environ)
    said = done.stdout + done.stderr
    assert done.exit_code == 0, said
    assert "stepscope:" not in said, said
    rows = read_table(folder / "rows.npy")
    losses = [
        None if math.isnan(loss) else float(loss)
        for loss in assemble_steps(rows, rows["end_ns"][0]).loss
    ]
    return Seeded(folder, said, losses, read_facts(folder / "facts.jsonl"))


def plain(folder: Path, source: str) -> str:
    """What the program prints under plain Python."""
    folder.mkdir(parents=True)
    program = folder / "program.py"
    program.write_text(dedent(source))
    done = warm.execute([sys.executable, str(program)], folder, {**os.environ, **_ENVIRON})
    assert done.exit_code == 0, done.stderr
    return done.stdout
