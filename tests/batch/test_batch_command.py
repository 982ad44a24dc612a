"""`stepscope batch` from the command line, with a small program of its own."""

import json

import pytest

from stepscope.cli.main import main

STEADY = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(1024, 4)), batch_size=16)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(100):
    for (x,) in loader:
        time.sleep(0.01)
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
    open("log.txt", "a").write("epoch\\n")
print("never to be seen")
"""
WITHOUT_LOADER = """
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for step in range(100):
    model(torch.randn(8, 4)).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def batch(capsys, tmp_path, monkeypatch):
    """Runs `stepscope batch` in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["batch", *map(str, arguments)])
        said = capsys.readouterr()
        return caught.value.code or 0, said.out, said.err

    return run


@pytest.mark.launches
def test_a_program_gets_a_larger_batch_and_stays_as_it_was(batch, tmp_path):
    (tmp_path / "train.py").write_text(STEADY)
    code, out, err = batch("--max", 32, "--steps", 24, "--json", "train.py")
    found = json.loads(out)
    assert code == 0, err
    assert (found["own"], found["knee"]["batch"]) == (16, 32)
    assert found["knee"]["speedup"]["ratio"] > 1  # 2, less what a busy machine adds to a sleep
    assert found["samples"] == 1024
    assert found["command"] == "stepscope run --fix batch=32 train.py"
    assert err.count("batch 32: ") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".stepscope", "train.py"]
    (kept,) = (tmp_path / ".stepscope").glob("batch-*/batch.json")
    assert json.loads(kept.read_text()) == found


@pytest.mark.slow
@pytest.mark.launches
def test_a_program_without_a_loader_is_told_why(batch, tmp_path):
    (tmp_path / "train.py").write_text(WITHOUT_LOADER)
    code, out, err = batch("--quiet", "train.py")
    assert (code, out) == (2, "")
    assert "no DataLoader in the program forms batches" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train.py"], "no such file"),
        (["--max", 0, "train.py"], "0 is not in the range"),
        (["--max", 8, "--min", 16, "train.py"], "--min 16 is above --max 8"),
        (["--headroom", "120%", "train.py"], "use a share such as 10%"),
        (["--within", "some", "train.py"], "use a share such as 10%"),
        (["--budget", "soon", "train.py"], "use a time such as"),
        (["--fix", "batch=64", "train.py"], "batch searches for the size itself"),
        (["--fix", "magic", "train.py"], "no fix named magic"),
    ],
)
def test_what_cannot_be_done_is_one_line(batch, arguments, words):
    code, out, err = batch(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_folder_that_holds_something_else_is_left_alone(batch, tmp_path):
    (tmp_path / "train.py").write_text(STEADY)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    code, _, err = batch("--out", "mine", "train.py")
    assert code == 2
    assert "is not a run folder" in err
