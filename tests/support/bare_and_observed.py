"""A small program under plain Python and under `stepscope run`, both forked from one process."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warm

from stepscope.record.facts import Facts, ProblemFact, WindowFact
from stepscope.store.json_lines import read_facts

_SOURCE = Path(__file__).parent.parent.parent / "src"
TRAINING = """
import os, sys, threading, time
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def step():
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

"""


@dataclass(frozen=True)
class Pair:
    """How both ended, and what was learned of the one observed."""

    bare: warm.Said
    observed: warm.Said
    facts: Facts

    @property
    def same(self) -> bool:
        """Whether exit code and output are the same."""
        return self._told(self.bare) == self._told(self.observed)

    def _told(self, said: warm.Said) -> Any:
        return said.exit_code, said.stdout.splitlines()

    @property
    def windows(self) -> list[str]:
        return [fact.name for fact in self.facts.all(WindowFact)]

    @property
    def problems(self) -> list[str]:
        return [fact.text for fact in self.facts.all(ProblemFact)]


def bare_and_observed(folder: Path, program: str, *options: str) -> Pair:
    """Run what follows `step()`, which trains for a step and returns its loss."""
    script = folder / "train.py"
    script.write_text(TRAINING + program)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "STEPSCOPE_"))}
    environ = kept | {"PYTHONPATH": str(_SOURCE), "OMP_NUM_THREADS": "1"}
    bare = warm.execute([sys.executable, str(script)], folder, environ)
    arguments = ["run", "--quiet", "--out", "run", *(options or ("--window-at", "5")), str(script)]
    observed = warm.stepscope(arguments, folder, environ)
    return Pair(bare, observed, read_facts(folder / "run" / "facts.jsonl"))
