"""The training program learns, repeats itself, stops when it is told to, and says what failed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from stepscope.workloads.catalogue import WORKLOADS
from stepscope.workloads.measure.program import run_program
from stepscope.workloads.measure.scores import Scores
from stepscope.workloads.train import train

SRC = Path(__file__).parents[2] / "src"
TINY = {
    "simple_cnn": ("--batch", "8"),
    "resnet18": ("--batch", "4"),
    "resnet50": ("--size", "32", "--classes", "10", "--batch", "8", "--lr", "0.002"),
    "efficientnet_b0": ("--size", "64", "--classes", "10", "--batch", "8"),
    "vit_small": ("--size", "32", "--classes", "10", "--batch", "4"),
    "transformer": ("--size", "16", "--batch", "4"),
    "transformer:characters": ("--length", "16", "--batch", "4"),
    "lstm": ("--length", "16", "--batch", "8"),
    "unet": ("--size", "32", "--batch", "2"),
    "gpt:tiny": ("--length", "16", "--batch", "4"),
}
LARGE = [name for name in WORKLOADS if name.startswith("gpt") and name != "gpt:tiny"]
LONG = ("resnet50", "efficientnet_b0", "vit_small", "unet")


def every_workload():
    """Each but the large decoders; those that take seconds are left to `make test-all`."""
    names = [name for name in WORKLOADS if name not in LARGE]
    return [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in names]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measured(folder, *arguments, code=0):
    """What a run of the program has measured of itself."""
    path = folder / "measured.json"
    given = ["--device", "cpu", *map(str, arguments), "--measure", str(path)]
    assert run_program("train", "", train, given) == code
    return json.loads(path.read_text()) if path.exists() else None


def program(*arguments, **options):
    """The program in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=200, env=environment, **options
    )


@pytest.fixture(scope="module")
def twenty(tmp_path_factory):
    """Twenty steps of the smallest model."""
    folder = tmp_path_factory.mktemp("twenty")
    return measured(folder, "--model", "mlp", "--batch", "32", "--steps", "20")


def test_the_record_says_what_was_measured(twenty):
    assert twenty["schema"] == "stepscope.measured/1"
    assert (twenty["model"], twenty["mode"], twenty["batch"]) == ("mlp", "train", 32)
    assert (twenty["device"], twenty["clock"]) == ("cpu", "perf_counter")
    assert twenty["torch"] == torch.__version__
    assert twenty["parameters"] == WORKLOADS["mlp"].parameters
    assert twenty["arithmetic"] == "fp32"
    assert twenty["flops_per_sample"] > 2 * twenty["parameters"]
    assert twenty["tokens_per_sample"] is None
    assert twenty["train_samples"] == 2000
    assert twenty["peak_memory_bytes"] > 1 << 20
    assert twenty["error"] is None


def test_exactly_the_steps_asked_for_are_made(twenty):
    assert twenty["steps"] == 20
    assert twenty["warmup"]["calls"] + twenty["calls"] == 20
    assert twenty["calls"] >= 12
    assert len(twenty["series_ms"]) == twenty["calls"]
    assert twenty["samples"] == 32 * twenty["calls"]
    assert sum(twenty["series_ms"]) == pytest.approx(1e3 * twenty["elapsed_s"], rel=0.05)
    assert [step for step, _ in twenty["losses"]] == list(range(1, 21))


def test_a_section_of_steps_is_not_interrupted_and_scored_at_its_end(twenty):
    assert [score["step"] for score in twenty["scores"]] == [20]
    assert twenty["score_name"] == "accuracy"
    assert twenty["final_score"] == twenty["scores"][-1]["score"]
    section_s = (twenty["ended_ns"] - twenty["started_ns"]) / 1e9
    assert section_s == pytest.approx(twenty["elapsed_s"], abs=0.01)


def test_the_loss_falls_and_the_score_beats_guessing(twenty):
    assert twenty["losses"][-1][1] < 0.7 * twenty["losses"][0][1]
    assert twenty["final_score"] > 0.3


@pytest.mark.parametrize("data", ["resident", "synthetic"])
def test_two_runs_have_the_same_losses(tmp_path, data):
    arguments = ("--model", "simple_cnn", "--batch", "4", "--size", "16", "--steps", "6")
    first, second, other = (
        measured(tmp_path, *arguments, "--data", data, "--samples", "32", "--seed", seed)
        for seed in (5, 5, 6)
    )
    assert first["losses"] == second["losses"]
    assert first["final_score"] == second["final_score"]
    assert first["losses"] != other["losses"]


def test_a_section_of_seconds_has_ten_steps_at_least(tmp_path):
    found = measured(tmp_path, "--model", "mlp", "--batch", "4", "--seconds", "0.01")
    assert found["calls"] >= 10
    assert found["warmup"]["calls"] >= 5


def test_epochs_are_scored_one_by_one_without_being_timed(tmp_path, monkeypatch):
    score = Scores._score
    monkeypatch.setattr(Scores, "_score", lambda self: (time.sleep(0.6), score(self))[1])
    begun = time.perf_counter()
    found = measured(tmp_path, "--model", "mlp", "--samples", "256", "--batch", "32", "--epochs", 3)
    took_s = time.perf_counter() - begun
    assert [score["step"] for score in found["scores"]] == [8, 16, 24]
    assert found["steps"] == 24
    assert found["elapsed_s"] < took_s - 3 * 0.6
    assert found["scores"][-1]["train_s"] == pytest.approx(
        found["elapsed_s"] + found["warmup"]["seconds"]
    )
    assert "scored during training" in found["notes"][-1]
    assert sum(found["series_ms"]) <= 1001 * found["elapsed_s"]


def test_training_ends_when_the_score_is_reached(tmp_path):
    given = ("--model", "mlp", "--batch", "32", "--samples", "512", "--target-score", "0.5")
    found = measured(tmp_path, *given, "--score-every", "4")
    assert found["final_score"] >= 0.5
    assert found["steps"] % 4 == 0
    assert found["time_to_score_s"] == found["scores"][-1]["train_s"]
    assert all(score["score"] < 0.5 for score in found["scores"][:-1])


def test_a_score_never_reached_has_no_time(tmp_path):
    given = ("--model", "mlp", "--batch", "32", "--samples", "64", "--epochs", "1")
    assert measured(tmp_path, *given, "--target-score", "1.1")["time_to_score_s"] is None


def test_epochs_are_told_to_people(capsys):
    given = ["--model", "mlp", "--samples", "128", "--batch", "64", "--epochs", "2"]
    assert run_program("train", "", train, [*given, "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("step 4  loss ")
    assert "accuracy" in lines[1]
    assert "samples/s" in lines[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "resnet81"), "did you mean resnet18"),
        (("--model", "mlp", "--samples", "8", "--batch", "9"), "more than the 8 samples"),
        (("--model", "mlp", "--batch", "many"), "--batch"),
        (("--model", "lstm", "--data", "cifar10"), "cifar10"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path, capsys, arguments, words):
    assert measured(tmp_path, *arguments, code=2) is None
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_no_cuda_device_is_told(capsys):
    assert run_program("train", "", train, ["--model", "mlp", "--device", "cuda"]) == 2
    assert capsys.readouterr().err == ("train: torch sees no CUDA device; use --device cpu\n")


FACTORIES = """
import torch

class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 4), torch.nn.Linear(6, 4)

    def forward(self, x, y):
        return self.first(x) + self.second(y)

def named():
    return Two(), {"x": torch.randn(1, 8), "y": torch.randn(1, 6)}, lambda out: out.square().mean()

def both():
    return Two(), lambda n: (torch.randn(n, 8), torch.randn(n, 6)), lambda out: out.square().mean()

def images():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 5))

def untrained():
    return Two(), (torch.randn(1, 8), torch.randn(1, 6))

class Breaks(torch.nn.Linear):
    def forward(self, x):
        if self.training and x.device.type == "cpu" and torch.is_grad_enabled():
            raise RuntimeError("it broke\\nbecause")
        return super().forward(x)

def breaks():
    return Breaks(8, 4), torch.randn(1, 8), lambda out: out.square().mean()
"""


@pytest.fixture
def factories(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FACTORIES)
    return path


@pytest.mark.parametrize("data", ["resident", "synthetic"])
@pytest.mark.parametrize("factory", ["named", "both", "images"])
def test_a_users_own_model_trains(tmp_path, factories, factory, data):
    given = ("--model", f"{factories}:{factory}", "--batch", "8", "--size", "16", "--steps", "10")
    found = measured(tmp_path, *given, "--samples", "32", "--data", data, "--lr", "0.05")
    assert found["samples"] == 8 * found["calls"]
    losses = [loss for _, loss in found["losses"]]
    assert sum(losses[-4:]) < sum(losses[:4])  # an epoch is four steps
    assert found["flops_per_sample"] > 0
    assert (found["final_score"] is None) is (factory != "images")


def test_a_model_without_a_loss_is_not_trained(tmp_path, factories, capsys):
    assert measured(tmp_path, "--model", f"{factories}:untrained", code=2) is None
    assert "(module, inputs, loss)" in capsys.readouterr().err


def test_a_failure_is_recorded_and_raised_as_usual(tmp_path, factories):
    path = tmp_path / "measured.json"
    given = ["--model", f"{factories}:breaks", "--batch", "4", "--device", "cpu"]
    with pytest.raises(RuntimeError, match="it broke"):
        run_program("train", "", train, [*given, "--measure", str(path)])
    found = json.loads(path.read_text())
    assert found["error"] == {"kind": "failed", "text": "RuntimeError: it broke"}
    assert found["parameters"] == 36
    assert found["calls"] == 0


def test_running_out_of_memory_is_a_result(tmp_path):
    path = tmp_path / "measured.json"
    given = ("--model", "simple_cnn", "--batch", "2048", "--samples", "2048", "--device", "cpu")
    done = program(
        *("stepscope.workloads.train", *given, "--memory-limit-gib", "0.5"), "--measure", path
    )
    assert done.returncode == 3, done.stderr
    assert done.stderr.startswith("train: out of memory")
    assert done.stderr.count("\n") == 1
    found = json.loads(path.read_text())
    assert found["error"]["kind"] == "out_of_memory"
    assert found["peak_memory_bytes"] < 0.8 * 2**30


@pytest.mark.slow
def test_fixes_take_hold_of_the_program(tmp_path):
    fixes = ("amp=bf16", "workers=1", "accumulate=2", "channels_last", "checkpointing")
    asked = [word for fix in fixes for word in ("--fix", fix)]
    path = tmp_path / "measured.json"
    done = program(
        *("stepscope.cli.main", "run", "--quiet", "--out", tmp_path / "run", *asked),
        *("-m", "stepscope.workloads.train", "--model", "simple_cnn", "--data", "synthetic"),
        *("--samples", "64", "--batch", "8", "--steps", "8", "--device", "cpu"),
        *("--measure", path),
    )
    assert done.returncode == 0, done.stderr
    facts = map(json.loads, (tmp_path / "run" / "facts.jsonl").read_text().splitlines())
    applied = {fact["name"] for fact in facts if fact.get("state") == "applied"}
    assert applied == {fix.partition("=")[0] for fix in fixes}
    found = json.loads(path.read_text())
    assert found["arithmetic"] == "bf16"
    assert found["flops_per_sample"] > 0
    assert found["steps"] == 8


@pytest.mark.slow
def test_a_compiled_model_says_what_compiling_took(tmp_path):
    path = tmp_path / "measured.json"
    done = program(
        *("stepscope.cli.main", "run", "--quiet", "--out", tmp_path / "run"),
        *("--fix", "amp=bf16", "--fix", "compile", "-m", "stepscope.workloads.train"),
        *("--model", "mlp", "--device", "cpu", "--steps", "30", "--measure", path),
    )
    assert done.returncode == 0, done.stderr
    facts = map(json.loads, (tmp_path / "run" / "facts.jsonl").read_text().splitlines())
    applied = {fact["name"] for fact in facts if fact.get("state") == "applied"}
    assert applied == {"amp", "compile"}
    found = json.loads(path.read_text())
    assert found["arithmetic"] == "bf16"
    assert found["first_calls_extra_s"] > 10 * found["elapsed_s"] / found["calls"]


@pytest.mark.parametrize("model", every_workload())
def test_every_workload_trains(tmp_path, model):
    few = ("--samples", "16", "--test-samples", "4", "--steps", "12")
    found = measured(tmp_path, "--model", model, *TINY.get(model, ("--batch", "8")), *few)
    assert found["error"] is None
    assert found["steps"] == 12
    assert found["flops_per_sample"] > 0
    assert found["final_score"] is not None
    losses = [loss for _, loss in found["losses"]]
    assert sum(losses[-4:]) < sum(losses[:4])
