"""Trials, proofs and batch sizes on a GPU: guarded programs, seeds, controls, memory that ends."""

import json
import subprocess
import sys

import pytest

from stepscope.launch.program import Program
from stepscope.measure.runner import TrialRunner
from stepscope.measure.trial.host import host_named
from stepscope.measure.trial.record import TrialRequest
from stepscope.tune.proof.prove import prove

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAINING = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
torch.backends.cudnn.deterministic = True
images, labels = torch.randn(512, 3, 32, 32), torch.randint(0, 10, (512,))
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
for epoch in range(1000):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
    open("log.txt", "a").write(f"{loss.item()}\\n")
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    cwd = tmp_path_factory.mktemp("work")
    (cwd / "train.py").write_text(TRAINING)
    folder = cwd / ".stepscope" / "tune-x"
    folder.mkdir(parents=True)
    program = Program("train.py", (), module=False)
    with TrialRunner(program, folder, cwd, host_named("cuda")) as made:
        yield made


def test_a_guarded_trial_on_the_gpu_tells_speed_memory_losses_and_norms(runner):
    trial = runner(TrialRequest(steps=60, proof=True))
    assert trial.ok, trial.failure
    assert len(trial.step_ms) >= 8
    assert trial.peak_memory_bytes > 1 << 20
    assert trial.gpu_busy is not None
    assert None not in trial.losses
    assert all(norm > 0 for norm in trial.proof.grad_norms)
    assert len(trial.proof.grad_norms) == 3


def test_the_same_seed_repeats_every_loss_and_another_does_not(runner):
    one, again, other = (runner(TrialRequest(steps=30, seed=seed)) for seed in (2, 2, 3))
    assert one.losses == again.losses
    assert one.losses != other.losses


def test_a_control_is_near_the_program_and_not_the_same(runner):
    base, control = (runner(TrialRequest(steps=30, perturb=dtype)) for dtype in (None, "bfloat16"))
    assert control.ok, control.failure
    assert control.losses != base.losses
    assert control.losses[0] == pytest.approx(base.losses[0], rel=0.02)


@pytest.mark.parametrize(("fix", "kind"), [("nosync", "exact"), ("amp=bf16", "numeric")])
def test_fixes_that_do_the_same_are_not_called_different(runner, fix, kind):
    proof = prove(runner, (fix,), kind, steps=60, seeds=2)
    assert proof.state != "differs", proof


def test_a_whole_tune_on_the_gpu(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    command = ["tune", "--json", "--only", "nosync,pin", "--budget", "10m", "--on", "cuda"]
    done = subprocess.run(
        [sys.executable, "-m", "stepscope.cli.main", *command, "--steps", "60", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["run"]["device"] == "cuda"
    assert not (tmp_path / "log.txt").exists()
    assert {one["label"] for one in found["ladder"]} <= {"nosync", "pin"}


def test_a_function_finds_where_the_gpus_memory_ends():
    from stepscope import find_batch_size

    total = torch.cuda.get_device_properties(0).total_memory
    each = total // 100

    def step(batch_size):
        held = torch.empty(batch_size * each, dtype=torch.uint8, device="cuda")
        held.fill_(1)
        torch.cuda.synchronize()

    sizes = find_batch_size(step, start=8, seconds=0.05)
    assert 56 <= sizes.largest <= 100
