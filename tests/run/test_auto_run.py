"""`stepscope run --auto …` as a user meets it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import warm

from stepscope.launch.program import Program
from stepscope.measure.prediction import kept_earlier
from stepscope.record.facts import AutoStop

SOURCE = Path(__file__).resolve().parents[2] / "src"
TRAIN = """\
import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

steps, killed = int(sys.argv[1]), int(sys.argv[2])
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
data = DataLoader(TensorDataset(torch.randn(8 * steps, 4)), batch_size=8, shuffle=True)
for step, (x,) in enumerate(data, start=1):
    loss = (model(x) - torch.ones(8, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), *sys.argv[3:])
    if step == killed:
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("auto")
    (found / "train.py").write_text(TRAIN)
    return found


def execute(folder: Path, *arguments: str) -> warm.Said:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    env = kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return warm.stepscope(list(arguments), folder, env).in_utf8()


def shown(folder: Path, name: str) -> Any:
    return json.loads(execute(folder, "show", name, "--json").stdout)


@pytest.fixture(scope="module")
def bare(folder: Path) -> warm.Said:
    return execute(folder, "run", "--no-window", "--out", "bare", "train.py", "80", "0")


def test_by_itself_it_means_exact_and_losses_are_those_of_a_bare_run(folder, bare):
    ended = execute(folder, "run", "--auto", "--out", "exact", "train.py", "80", "0")
    document = shown(folder, "exact")
    assert ended.exit_code == 0
    assert ended.stdout == bare.stdout
    assert document["auto"]["allow"] == "exact"
    assert document["auto"]["kept"] == []
    assert document["auto"]["stopped"] == AutoStop.NOTHING_TO_TRY
    assert document["losses"] == shown(folder, "bare")["losses"]
    assert "--auto kept nothing" in ended.stderr


def test_a_run_without_it_has_no_contests(folder, bare):
    assert shown(folder, "bare")["auto"] is None


def test_an_option_of_the_programs_own_is_left_alone(folder, bare):
    words = ("run", "--no-window", "--out", "own", "train.py", "80", "0", "--auto")
    ended = execute(folder, *words)
    assert ended.stdout == bare.stdout.replace("\n", " --auto\n")
    assert shown(folder, "own")["auto"] is None


@pytest.mark.parametrize("word", ["--auto=semantic", "--auto=yes"])
def test_other_kinds_are_refused(folder, word):
    ended = execute(folder, "run", word, "train.py", "80", "0")
    assert ended.exit_code == 2
    assert "exact" in ended.stderr


def test_a_program_killed_in_a_contest_leaves_a_readable_run(folder):
    words = ("run", "--auto=numeric", "--out", "killed", "train.py", "4000", "60")
    ended = execute(folder, *words)
    document = shown(folder, "killed")
    assert ended.exit_code == 128 + 9
    assert document["steps"]["count"] == 60
    assert document["auto"]["stopped"] is None
    assert document["auto"]["contests"] == document["fixes"] == []
    assert "the program ended first" in execute(folder, "show", "killed").stdout


def test_the_next_run_begins_with_what_the_last_one_kept(folder, bare):
    execute(folder, "run", "--auto", "--out", "first", "train.py", "40", "0")
    fact = {"fact": "auto", "allow": "numeric", "kept": ["foreach"], "stopped": "done"}
    with open(folder / "first" / "facts.jsonl", "a") as facts:
        facts.write(json.dumps(fact) + "\n")
    new = folder / "next"
    new.mkdir()
    assert kept_earlier(new, Program("train.py", ("40", "0"), False)) == ("foreach",)
    assert kept_earlier(new, Program("train.py", ("41", "0"), False)) == ()
    assert kept_earlier(new, Program("other.py", ("40", "0"), False)) == ()
