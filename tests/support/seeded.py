"""A program written by a test, run once as a trial is: observed, under an imposed seed."""

import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from time import monotonic_ns
from typing import Any

from stepscope.analyze.steps import assemble
from stepscope.launch.program import environment
from stepscope.record.options import ProbeOptions
from stepscope.store.facts import read_facts
from stepscope.store.table import read_table


@dataclass(frozen=True)
class Seeded:
    """What is left of one such run."""

    folder: Path
    out: str
    losses: list[float | None]
    """One a step, None where none was seen."""
    facts: dict[str, list[dict[str, Any]]]

    @property
    def proof(self) -> dict[str, Any]:
        return self.facts["proof"][-1]


def trial(folder: Path, source: str, **options: Any) -> Seeded:
    """Run it in a child and read its folder; the program must end well."""
    folder.mkdir(parents=True)
    program = folder / "program.py"
    program.write_text(dedent(source))
    asked = ProbeOptions(str(folder), monotonic_ns(), window=0, stacks=0, **options)
    variables = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, str(program)],
        env=environment(asked.to_json(), variables),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "stepscope:" not in done.stderr, done.stderr
    rows = read_table(folder / "rows.npy")
    losses = [
        None if math.isnan(loss) else float(loss) for loss in assemble(rows, rows["end_ns"][0]).loss
    ]
    return Seeded(folder, done.stdout, losses, read_facts(folder / "facts.jsonl"))


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
