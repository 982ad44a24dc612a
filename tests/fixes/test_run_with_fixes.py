"""`stepscope run --fix …` as a user meets it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import warm

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).resolve().parents[2] / "src"
FIXED_SIZE = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(24, 4)), batch_size=8):
    loss = (model(x) - torch.ones(8, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("trained on", len(x))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, and the runs made of them."""
    found = tmp_path_factory.mktemp("programs")
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, found)
    (found / "fixed_size.py").write_text(FIXED_SIZE)
    (found / "plain.py").write_text("print('started')\n")
    return found


def execute(arguments: list[str], folder: Path) -> warm.Said:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
    env = kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    return warm.stepscope(arguments, folder, env).in_utf8()


def run(folder: Path, name: str, *words: str) -> tuple[warm.Said, Any]:
    """`stepscope run` and what `show --json` tells of it."""
    ended = execute(["run", "--no-window", "--out", name, *words], folder)
    shown = execute(["show", name, "--json"], folder)
    assert shown.exit_code == 0, ended.stderr + shown.stderr
    return ended, json.loads(shown.stdout)


@pytest.fixture(scope="module")
def bare(folder: Path) -> tuple[warm.Said, Any]:
    """The program without fixes."""
    return run(folder, "bare", "resumed.py")


@pytest.fixture(scope="module")
def exact(folder: Path) -> tuple[warm.Said, Any]:
    """The same with fixes that change no loss, and one that there is nothing for."""
    asked = ("--fix", "workers=2", "--fix", "persistent", "--fix", "pin", "--fix", "checkpointing")
    return run(folder, "exact", *asked, "resumed.py")


def test_the_screen_tells_what_became_of_each_fix(exact: Any) -> None:
    ended, _ = exact
    assert ended.exit_code == 0, ended.stderr
    text = " ".join(ended.stderr.split())
    assert "workers=2 applied: DataLoader at resumed.py:" in text
    assert "persistent applied" in text
    assert "checkpointing not applied: Net, called at resumed.py:" in text
    assert "Traceback" not in text


def test_show_as_json_has_the_fixes(exact: Any, bare: Any) -> None:
    _, document = exact
    fixes = {fix["name"]: fix for fix in document["fixes"]}
    assert list(fixes) == ["workers", "persistent", "pin", "checkpointing"]
    assert fixes["workers"]["state"] == "applied"
    assert fixes["workers"]["kind"] == "exact"
    assert fixes["workers"]["value"] == 2
    assert fixes["checkpointing"]["state"] == "not applicable"
    assert "no repeated blocks" in fixes["checkpointing"]["reasons"][0]
    assert bare[1]["fixes"] == []


def test_exact_fixes_leave_losses_and_what_the_program_prints_as_they_were(
    exact: Any, bare: Any
) -> None:
    assert bare[0].exit_code == 0, bare[0].stderr
    assert len(bare[1]["losses"]) == bare[1]["steps"]["count"] == 12
    assert exact[1]["losses"] == bare[1]["losses"]
    assert exact[0].stdout == bare[0].stdout
    assert "weights" in bare[0].stdout


def test_show_prints_the_fixes_of_a_run(exact: Any, folder: Path) -> None:
    shown = execute(["show", "exact"], folder)
    assert shown.exit_code == 0
    assert "workers=2 applied" in shown.stdout
    assert "checkpointing not applied" in shown.stdout


def test_a_fix_that_breaks_in_the_middle_ends_the_program_with_its_reason(folder: Path) -> None:
    ended, document = run(folder, "broke", "--fix", "batch=12", "fixed_size.py")
    assert ended.exit_code == 1
    assert ended.stdout == ""
    (line,) = [line for line in ended.stderr.splitlines() if line.startswith("stepscope: ")]
    assert line.startswith("stepscope: batch: the program relies on batches of 8")
    assert line.endswith("(at fixed_size.py:7)")
    assert "Traceback" not in ended.stderr
    (fix,) = document["fixes"]
    assert fix["state"] == "broke"
    assert "relies on batches of 8" in fix["reasons"][-1]
    text = " ".join(ended.stderr.split())
    assert text.count("relies on batches of 8") >= 2  # at once, and in the summary


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["nosuch"], "no fix named nosuch"),
        (["worker=2"], "did you mean workers?"),
        (["amp=bf17"], "--fix amp=bf17: use"),
        (["drop_last=yes"], "--fix drop_last takes no value"),
        (["batch"], "--fix batch"),
        (["foreach", "fused_optimizer"], "cannot be combined"),
        (["pin", "pin"], "--fix pin is given twice"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else None,
)
def test_what_cannot_be_asked_for_is_refused_before_the_program_starts(
    folder: Path, asked: list[str], says: str
) -> None:
    before = sorted(folder.rglob("*"))
    words = [word for text in asked for word in ("--fix", text)]
    ended = execute(["run", *words, "plain.py"], folder)
    assert (ended.exit_code, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("stepscope: ")
    assert says in line
    assert sorted(folder.rglob("*")) == before


def test_a_program_without_torch_is_told_that_nothing_took_hold(folder: Path) -> None:
    ended, document = run(folder, "without", "--fix", "drop_last", "plain.py")
    assert (ended.exit_code, ended.stdout) == (0, "started\n")
    assert [(fix["name"], fix["state"]) for fix in document["fixes"]] == [
        ("drop_last", "not applicable")
    ]
    assert "drop_last not applied" in " ".join(ended.stderr.split())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("program", ["lightning_fit", "hf_trainer"])
def test_many_fixes_at_once_hold_in_a_whole_process(folder: Path, program: str) -> None:
    asked = ("batch=12", "workers=2", "persistent", "amp=bf16", "channels_last", "accumulate=2")
    words = [word for text in asked for word in ("--fix", text)]
    ended, document = run(folder, program, *words, f"{program}.py")
    assert ended.exit_code == 0, ended.stderr
    states = {fix["name"]: fix["state"] for fix in document["fixes"]}
    assert {states[name] for name in ("batch", "workers", "amp", "accumulate")} == {"applied"}
    assert "weights" in ended.stdout
