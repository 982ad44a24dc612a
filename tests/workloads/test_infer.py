"""The inference program measures throughput and latency apart."""

import json

import pytest
import torch

from stepscope.workloads.catalogue import WORKLOADS
from stepscope.workloads.infer import infer
from stepscope.workloads.measure.program import run_program


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def measured(folder, *arguments):
    path = folder / "measured.json"
    given = ["--device", "cpu", *map(str, arguments), "--measure", str(path)]
    assert run_program("infer", "", infer, given) == 0
    return json.loads(path.read_text())


@pytest.mark.parametrize("data", ["resident", "synthetic"])
def test_throughput_and_latency_are_two_sections(tmp_path, data):
    found = measured(
        tmp_path, "--model", "mlp", "--batch", "16", "--seconds", "0.1", "--data", data
    )
    assert (found["mode"], found["error"]) == ("infer", None)
    assert found["samples"] == 16 * found["calls"]
    assert found["calls"] >= 10
    assert len(found["series_ms"]) >= 10
    assert found["elapsed_s"] > 0.05
    assert sum(found["series_ms"]) > 5
    assert len(found["throughput_ms"]) == found["calls"]
    assert sum(found["throughput_ms"]) == pytest.approx(1e3 * found["elapsed_s"], rel=0.1)
    assert "losses" not in found
    section_s = (found["ended_ns"] - found["started_ns"]) / 1e9
    assert section_s > found["elapsed_s"] - 0.001


def test_as_many_calls_as_asked_for_are_in_each_section(tmp_path):
    found = measured(tmp_path, "--model", "mlp", "--batch", "4", "--steps", "7")
    assert found["calls"] == 7
    assert len(found["series_ms"]) == 7
    assert found["warmup"]["calls"] >= 5


def test_only_the_forward_is_counted_and_no_gradients_are_kept(tmp_path, monkeypatch):
    modes = []
    monkeypatch.setattr(
        "stepscope.workloads.models.small.MLP.forward",
        lambda self, x: (modes.append((torch.is_inference_mode_enabled(), self.training)), x)[1],
    )
    measured(tmp_path, "--model", "mlp", "--batch", "4", "--steps", "3")
    called = {mode for mode in modes if mode[0]}
    assert called == {(True, False)}


def test_flops_are_those_of_a_forward(tmp_path):
    found = measured(tmp_path, "--model", "mlp", "--batch", "4", "--steps", "3")
    weights = WORKLOADS["mlp"].parameters
    assert found["flops_per_sample"] == pytest.approx(2 * weights, rel=0.01)


def test_people_are_told_the_rate(capsys):
    given = ["--model", "mlp", "--batch", "4", "--steps", "12", "--device", "cpu"]
    assert run_program("infer", "", infer, given) == 0
    assert capsys.readouterr().out.endswith(" samples/s\n")


def test_a_model_without_a_loss_can_be_run(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import torch\n"
        "def pair():\n"
        "    return torch.nn.Bilinear(4, 3, 2), (torch.randn(1, 4), torch.randn(1, 3))\n"
    )
    found = measured(tmp_path, "--model", f"{path}:pair", "--batch", "8", "--steps", "5")
    assert found["samples"] == 40
    assert found["error"] is None


def test_an_option_of_training_is_refused(capsys):
    assert run_program("infer", "", infer, ["--model", "mlp", "--epochs", "2"]) == 2
    assert "--epochs" in capsys.readouterr().err
