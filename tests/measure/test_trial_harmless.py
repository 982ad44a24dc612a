"""What trials may never do: leave a trace in the user's folder, his trackers or his home."""

from pathlib import Path
from shutil import rmtree

import pytest
from guarded import Guarded, guarded, state_of

from stepscope.launch.observed_run import RunRequest, observe_program
from stepscope.launch.program import Program
from stepscope.measure.isolation import isolated, make_temporary
from stepscope.measure.scratch_copy import make_scratch, remove_scratch
from stepscope.probe.guard.walls import find_wall
from stepscope.record.facts import EndFact, WroteOutsideFact
from stepscope.record.probe_options import ProbeOptions, Wall
from stepscope.store.json_lines import read_facts

_TRAINING = """
import os, shutil, sqlite3
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file
from torch.utils.data import DataLoader, TensorDataset

checkpoints = Path("checkpoints")
checkpoints.mkdir(exist_ok=True)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
found = sorted(checkpoints.glob("*.pt"), key=os.path.getmtime)
begun = 0
if found:
    state = torch.load(found[-1])
    model.load_state_dict(state["model"])
    begun = state["step"]
print("from", begun)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
log = open("log.txt", "a")
base = sqlite3.connect("runs.db")
base.execute("create table if not exists losses (step, loss)")
for step, (x, y) in enumerate(DataLoader(data, batch_size=8, num_workers=1), begun + 1):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item(), file=log, flush=True)
    base.execute("insert into losses values (?, ?)", (step, loss.item()))
    base.commit()
    torch.save({"model": model.state_dict(), "step": step}, checkpoints / f"{step:03d}.pt")
    torch.save(torch.zeros(1000), "large.pt")
    save_file(model.state_dict(), "model.safetensors")
    if step == begun + 1:
        torch.jit.save(torch.jit.trace(model, x), "traced.pt")
    np.save("array.npy", np.zeros(3))
    np.lib.format.open_memmap("mapped.npy", "r+")[0] = step
    if (checkpoints / f"{step - 3:03d}.pt").exists():
        os.remove(checkpoints / f"{step - 3:03d}.pt")
    os.replace("log.txt", "log.new")
    os.rename("log.new", "log.txt")
shutil.rmtree("scraps")
print("done", step)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "me" / "project"
    folder.mkdir(parents=True)
    return folder


def _plain(project: Path) -> None:
    """What two days of work have left in the folder."""
    import sqlite3

    import numpy as np
    import torch

    (project / "train.py").write_text(_TRAINING)
    (project / "log.txt").write_text("1 0.5\n")
    (project / "scraps").mkdir()
    (project / "scraps" / "a.txt").write_text("x")
    (project / "checkpoints").mkdir()
    model = torch.nn.Linear(8, 1)
    for step in (1, 2, 3):
        state = {"model": model.state_dict(), "step": step}
        torch.save(state, project / "checkpoints" / f"{step:03d}.pt")
    torch.save(torch.zeros(1 << 20), project / "large.pt")
    np.save(project / "mapped.npy", np.zeros(1 << 18))
    with sqlite3.connect(project / "runs.db") as base:
        base.execute("create table losses (step, loss)")
    base.close()


@pytest.mark.slow
def test_training_that_logs_saves_and_resumes_leaves_its_folder_as_it_was(
    project: Path, tmp_path: Path
) -> None:
    _plain(project)
    before = state_of(tmp_path / "me")
    said = []
    for number in (1, 2):
        trial = tmp_path / "trial" / str(number)
        tmp = make_temporary()  # short: what workers hand over goes through sockets in it
        trial.mkdir(parents=True)
        scratch = make_scratch(project, tmp_path / "scratch")
        with isolated(tmp_path, trial, tmp, scratch, True, find_wall()) as (variables, guard):
            options = ProbeOptions(
                folder=str(trial), launched_ns=0, window=0, stacks=0, guard=guard
            )
            request = RunRequest(
                Program("train.py", (), module=False),
                variables=variables,
                cwd=scratch.folder,
                output=trial / "output.txt",
            )
            outcome = observe_program(request, options)
        said.append((trial / "output.txt").read_text())
        facts = read_facts(trial / "facts.jsonl")
        assert (outcome.exit_code, said[-1], facts.all(WroteOutsideFact)) == (0, said[0], [])
        assert facts.last(EndFact).steps == 8
        assert (scratch.folder / "checkpoints" / "011.pt").exists()
        assert scratch.changed() == []
        remove_scratch(scratch.root)
        rmtree(tmp)
    assert said[0].splitlines()[0] == "from 3"
    assert "done 11" in said[0]
    assert state_of(tmp_path / "me") == before


@pytest.mark.parametrize(
    ("statement", "wall"),
    [
        ("torch.save(model.state_dict(), there)", None),
        ("torch.save(model.state_dict(), there)", Wall.NONE),
        *(
            pytest.param(statement, Wall.NONE, marks=pytest.mark.slow)
            for statement in (
                "torch.jit.script(model).save(there)",
                "from safetensors.torch import save_file; save_file(model.state_dict(), there)",
                "import pyarrow, pyarrow.feather as f; f.write_feather(pyarrow.table({}), there)",
            )
        ),
    ],
)
def test_native_writers_are_stopped_with_path_and_line(
    project: Path, tmp_path: Path, statement: str, wall: Wall | None
) -> None:
    there = tmp_path / "outside.pt"
    (project / "train.py").write_text(
        f"import torch\nmodel = torch.nn.Linear(2, 2)\nthere = {str(there)!r}\n{statement}\n"
    )
    ran = guarded(project, tmp_path / "trial", wall=wall)
    assert ran.code == 97
    assert [(fact.path, fact.line) for fact in ran.outside] == [(str(there), 4)]
    assert not there.exists()


def test_native_writers_replace_links_also_without_a_wall(project: Path, tmp_path: Path) -> None:
    (project / "large.pt").write_bytes(bytes(2 << 20))
    (project / "train.py").write_text("import torch\ntorch.save(1, 'large.pt')\n")
    before = state_of(project)
    ran = guarded(project, tmp_path / "trial", wall=Wall.NONE)
    assert (ran.code, ran.outside) == (0, [])
    assert state_of(project) == before
    assert (ran.scratch.folder / "large.pt").stat().st_size < 2 << 20


def test_a_linked_lmdb_is_read_with_a_lock_of_its_own(project: Path, tmp_path: Path) -> None:
    (project / "data.lmdb").mkdir()
    (project / "data.lmdb" / "data.mdb").write_bytes(bytes(65 << 20))
    (project / "data.lmdb" / "lock.mdb").write_bytes(b"")
    before = state_of(project / "data.lmdb")
    ran = _with_module(
        project,
        tmp_path,
        "lmdb",
        "def open(path, readonly=False):\n"
        "    import os\n"
        "    os.system(f'echo x > {path}/lock.mdb')\n",
        "import lmdb\nlmdb.open('data.lmdb', readonly=True)\n",
    )
    assert (ran.code, ran.said) == (0, "")
    assert state_of(project / "data.lmdb") == before
    assert (ran.scratch.folder / "data.lmdb" / "data.mdb").is_symlink()


def _with_module(project: Path, tmp_path: Path, name: str, text: str, program: str) -> Guarded:
    """Run a program that imports a stand-in for a tracker's package."""
    path = project / Path(*name.split("."))
    path.mkdir(parents=True)
    for folder in (path, *path.parents):
        if folder == project:
            break
        (folder / "__init__.py").touch()
    (path / "__init__.py").write_text(text)
    (project / "train.py").write_text(program)
    return guarded(project, tmp_path / "trial")


def test_a_tracker_told_to_send_in_the_code_does_not(project: Path, tmp_path: Path) -> None:
    ran = _with_module(
        project,
        tmp_path,
        "wandb",
        "def init(project=None, mode=None):\n    print(project, mode)\n",
        "import wandb\nwandb.init(project='mine', mode='online')\n",
    )
    assert (ran.code, ran.said) == (0, "mine disabled\n")


def test_a_tracking_server_named_in_the_code_is_not_asked(project: Path, tmp_path: Path) -> None:
    ran = _with_module(
        project,
        tmp_path,
        "mlflow.tracking.client",
        "class MlflowClient:\n"
        "    def __init__(self, tracking_uri=None, registry_uri=None):\n"
        "        print(tracking_uri)\n",
        "import mlflow.tracking.client\n"
        "mlflow.tracking.client.MlflowClient('http://tracker.example')\n",
    )
    assert (ran.code, ran.said) == (0, "None\n")


def test_an_address_set_in_the_code_is_passed_over(project: Path, tmp_path: Path) -> None:
    ran = _with_module(
        project,
        tmp_path,
        "mlflow",
        "def set_tracking_uri(uri):\n    print(uri)\n",
        "import mlflow\nmlflow.set_tracking_uri('http://tracker.example')\n",
    )
    assert (ran.code, ran.said) == (0, "")


def test_an_upload_to_a_hub_stops(project: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    (project / "train.py").write_text(
        "from huggingface_hub import create_repo\ncreate_repo('me/model', token='x')\n"
    )
    ran = guarded(project, tmp_path / "trial")
    assert ran.code == 97
    assert (ran.outside[0].action, ran.outside[0].line) == ("send to", 2)


def test_the_users_home_is_closed_and_its_caches_have_stand_ins(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "old").write_text("old")
    (home / ".cache" / "huggingface").symlink_to(tmp_path / "disk")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (project / "train.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "cache = Path(os.environ['XDG_CACHE_HOME'])\n"
        "print((cache / 'huggingface' / 'old').read_text())\n"
        "(cache / 'huggingface' / 'a').write_text('x')\n"
        "(cache / 'b').write_text('x')\n"
        "(Path.home() / 'c').write_text('x')\n"
    )
    before = state_of(home), state_of(tmp_path / "disk")
    ran = guarded(project, tmp_path / "trial")
    assert (ran.said, ran.outside[0].path) == ("old\n", str(home / "c"))
    assert (state_of(home), state_of(tmp_path / "disk")) == before
