"""`stepscope tune` from the command line: a whole tune on the CPU, killed once in its middle."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting_program import SOURCE

from stepscope.cli.main import main
from stepscope.tune.tuner import Tuner

OPTIONS = ("--only", "workers=4,channels_last", "--budget", "20m", "--steps", "40", "--seeds", "2")
pytestmark = pytest.mark.timeout(900)
LADDER = {"fix", "params", "speedup", "low", "high", "verdict", "predicted_speedup", "proof"}


def command(*arguments):
    return [sys.executable, "-m", "stepscope.cli.main", "tune", *arguments]


def tree(folder):
    """Every file of the user's with what is in it and when it was changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if ".stepscope" not in path.parts and path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[str(path.relative_to(folder))] = (digest, path.stat().st_mtime_ns)
    return found


def journal(folder):
    path = folder / "journal.jsonl"
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line)["trial"] for line in lines[1:] if line.endswith("}")]


class Whole:
    """What a tune left behind that was killed after some trials and gone on with."""

    def __init__(self, place):
        self.place = place
        self.folder = place / ".stepscope" / "it"
        (place / "train.py").write_text(SOURCE)
        (place / "log.txt").write_text("before\n")
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.before = tree(place)
        first = subprocess.Popen(
            command(*OPTIONS, "--out", ".stepscope/it", "train.py"),
            cwd=place,
            env=environ,
            stderr=subprocess.DEVNULL,
        )
        while len(journal(self.folder)) < 3 and first.poll() is None:
            time.sleep(0.1)
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.killed_after = journal(self.folder)
        second = subprocess.run(
            command(*OPTIONS, "--resume", ".stepscope/it", "--json", "train.py"),
            cwd=place,
            env=environ,
            capture_output=True,
            text=True,
        )
        assert second.returncode == 0, second.stderr
        self.said = second.stderr
        self.document = json.loads(second.stdout)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return Whole(tmp_path_factory.mktemp("tuned"))


def test_a_program_that_waits_on_storage_gains_with_identical_losses(whole):
    found = whole.document
    (rung,) = found["ladder"]
    assert set(rung) >= LADDER
    assert (rung["fix"], rung["params"]) == ("workers", {"value": "4"})
    assert rung["speedup"] > 1
    assert rung["proof"]["state"] == "identical"
    assert rung["losses"] == found["baseline"]["losses"]
    assert found["final"]["proof"]["state"] == "identical"
    assert found["final"]["speedup"] > 1


def test_a_fix_that_breaks_the_program_is_a_result_and_no_end(whole):
    (rejected,) = (one for one in whole.document["rejected"] if one["fix"] == "channels_last")
    assert rejected["state"] in ("broke", "not_applicable")
    assert "view" in rejected["because"]["detail"]


def test_the_users_tree_is_as_it_was(whole):
    assert tree(whole.place) == whole.before
    assert not (whole.folder / "scratch").exists()


def test_a_killed_tune_repeats_at_most_the_trial_under_way(whole):
    trials = journal(whole.folder)
    assert len(whole.killed_after) >= 3
    assert trials[: len(whole.killed_after)] == whole.killed_after
    assert whole.document["trials"] == len(trials)
    assert whole.said.count("(known)") == len(whole.killed_after)


def test_what_to_run_and_what_to_keep_is_said(whole):
    found = whole.document
    assert found["command"] == "stepscope run --fix workers=4 train.py"
    assert Path(whole.place / found["patch"]["path"]).read_text() == found["patch"]["text"]
    assert (
        "+    loader = DataLoader(Stored(), batch_size=8, shuffle=True, num_workers=4)"
        in (found["patch"]["text"])
    )
    assert found["patch"]["speedup"] > 1


def test_the_screen_tells_it_in_a_few_lines(whole, capsys):
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.tune.story import tune_story
    from stepscope.results.load import decode
    from stepscope.tune.document import Tune

    print_story(tune_story(decode(whole.document, Tune)), sys.stdout)
    out = capsys.readouterr().out
    assert "+ workers=4" in out
    assert "− channels_last" in out
    assert "identical" in out
    assert max(map(len, out.splitlines())) <= 80


def test_fixes_that_were_kept_as_one_are_all_named(whole, capsys):
    from stepscope.report.render.terminal.story import print_story
    from stepscope.report.story.tune.story import tune_story
    from stepscope.results.load import decode
    from stepscope.tune.document import Tune

    rung, *others = whole.document["ladder"]
    kept = rung | {"label": "amp=bf16 + channels_last + compile=reduce-overhead"}
    longer = whole.document | {"ladder": [kept, *others]}
    print_story(tune_story(decode(longer, Tune)), sys.stdout)
    out = capsys.readouterr().out
    assert all(name in out for name in ("+ amp=bf16", "channels_last", "compile=reduce-overhead"))
    assert max(map(len, out.splitlines())) <= 80


@pytest.fixture
def tune(capsys, tmp_path, monkeypatch):
    """Runs `stepscope tune` in an empty folder: exit code and what it said on stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["tune", *map(str, arguments)])
        return caught.value.code or 0, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("missing.py",), "no such file: missing.py"),
        (("--budget", "soon", "train.py"), "--budget soon: use a time"),
        (("--only", "speed", "train.py"), "no fix named speed"),
        (("--skip", "workers=many", "train.py"), "--fix workers=many"),
        (("--on", "tpu", "train.py"), "--on tpu: there is cpu"),
        (("--resume", "nowhere", "train.py"), "nowhere holds no tune to resume"),
        (("--steps", "2", "train.py"), "--steps"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tune, tmp_path, arguments, says):
    (tmp_path / "train.py").write_text(SOURCE)
    code, said = tune(*arguments)
    assert code == 2
    assert says in said
    assert len(said.strip().splitlines()) == 1


@pytest.mark.launches
def test_a_program_that_fails_as_it_is_is_not_tuned(tune, tmp_path):
    (tmp_path / "train.py").write_text("import torch\nraise RuntimeError('no data here')\n")
    code, said = tune("train.py")
    assert code == 2
    assert "no data here" in said


def test_a_journal_of_another_program_is_refused(tune, tmp_path, whole):
    (tmp_path / "train.py").write_text(SOURCE + "\n")
    code, said = tune(*OPTIONS, "--resume", whole.folder, "train.py")
    assert code == 2
    assert "train.py changed" in said


AUGMENTED = """
import time
import torch
from torch.utils.data import DataLoader, Dataset

class Noisy(Dataset):
    x = torch.randn(160, 8, generator=torch.Generator().manual_seed(0))
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.002)
        return self.x[index] + 0.1 * torch.randn(8), self.x[index].sum()

torch.set_num_threads(1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(100):
    for x, y in DataLoader(Noisy(), batch_size=8, shuffle=True):
        loss = (model(x)[:, 0] - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_workers_beside_random_augmentation_are_proven_with_its_draws_held(tmp_path):
    (tmp_path / "train.py").write_text(AUGMENTED)
    done = subprocess.run(
        command("--only", "workers=4", "--budget", "10m", "--json", "train.py"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    final = json.loads(done.stdout)["final"]
    assert final["speedup"] > 1
    assert final["proof"]["draws_per_batch"]
    assert final["proof"]["state"] == "identical"
    assert "baseline, draws per batch" in done.stderr


LEARNING = """
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
made = torch.Generator().manual_seed(1)
labels = torch.randint(0, 10, (4000,), generator=made)
points = torch.randn(10, 32, generator=made)[labels] + 2.5 * torch.randn(4000, 32, generator=made)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(64), nn.Linear(64, 64)
    def forward(self, x):
        return x + torch.relu(self.linear(self.norm(x)))

model = nn.Sequential(nn.Linear(32, 64), *(Block() for _ in range(24)), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(20):
    for batch in torch.randperm(4000).split(32):
        loss = nn.functional.cross_entropy(model(points[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_a_fused_optimizer_in_a_net_that_learns_is_proven_to_match(tmp_path):
    """Losses fall from 2.6 to 0.6 in the steps of the proof."""
    (tmp_path / "train.py").write_text(LEARNING)
    options = ("--only", "fused_optimizer", "--unguarded", "--json")
    done = subprocess.run(
        command(*options, "train.py"), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    proof = found["final"]["proof"]
    assert (proof["state"], proof["seeds"], proof["settle"]) == ("matches", 3, None)
    assert found["seconds"] <= found["request"]["budget_s"]


def test_an_interrupt_before_the_first_trial_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    def interrupted(tuner, listener):
        raise KeyboardInterrupt

    monkeypatch.setattr(Tuner, "run", interrupted)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--out", "t", "--unguarded", "--only", "amp,pin", "train.py", "--lr", "1"])
    assert ended.value.code == 130
    said = capsys.readouterr().err.splitlines()[-1]
    resume = "stepscope tune --resume t --budget 600s --only amp,pin --unguarded train.py --lr 1"
    assert said.endswith(resume)
