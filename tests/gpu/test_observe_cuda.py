"""What observing sees on a CUDA device, and what it leaves alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

PROGRAMS = Path(__file__).parent / "programs"
STEPSCOPE = [sys.executable, "-m", "stepscope.cli.main"]


@pytest.fixture(scope="module", autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def execute(command):
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


def observe(tmp_path_factory, name, *options):
    folder = tmp_path_factory.mktemp(name) / "run"
    program = str(PROGRAMS / f"{name}.py")
    done = execute([*STEPSCOPE, "run", "--quiet", *options, "--out", str(folder), program])
    shown = execute([*STEPSCOPE, "show", str(folder), "--json"])
    return done, json.loads(shown.stdout)


def losses(text):
    return [float(line.split()[1]) for line in text.splitlines() if line.startswith("loss ")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return observe(tmp_path_factory, "train_cuda")


def test_stdout_and_losses_are_those_of_a_plain_run(trained):
    done, document = trained
    plain = execute([sys.executable, str(PROGRAMS / "train_cuda.py")])
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert document["losses"] == losses(plain.stdout)
    assert document["problems"] == []


def test_steps_are_counted_and_timed_on_the_device(trained):
    _, document = trained
    assert document["steps"]["count"] == 60
    assert document["run"]["device"] == "cuda"
    device = document["phases_device_ms"]
    assert all(device[phase] > 0 for phase in ("h2d", "forward", "backward", "optimizer"))
    total = sum(document["phases_ms"].values())
    assert total == pytest.approx(document["steps"]["mean_ms"], rel=1e-6)


def test_every_wait_is_found_with_its_line(trained):
    _, document = trained
    source = (PROGRAMS / "train_cuda.py").read_text().splitlines()
    found = {sync["what"]: (sync["count"], source[sync["line"] - 1]) for sync in document["syncs"]}
    assert found["synchronize"][0] == 60
    assert "torch.cuda.synchronize()" in found["synchronize"][1]
    assert found["item"][0] == 60
    assert "loss.item()" in found["item"][1]
    copies = [sync for sync in document["syncs"] if sync["what"] == "pageable copy"]
    assert sorted((copy["count"], source[copy["line"] - 1].strip()) for copy in copies) == [
        (60, "inputs = inputs.cuda()"),
        (60, 'labels = labels.to("cuda")'),
    ]


def test_the_gpu_and_its_memory_are_described(trained):
    _, document = trained
    gpu = document["gpu"]
    assert 0 < gpu["busy_fraction"] <= 1
    assert 0 < gpu["peak_allocated_bytes"] <= gpu["peak_reserved_bytes"] < gpu["total_bytes"]
    owners = document["memory"]["owners"]
    parameters = 4 * (64 * 256 + 256 + 256 * 10 + 10)
    assert parameters <= owners["parameters"] < 2 * parameters
    assert sum(owners.values()) == document["memory"]["peak_bytes"]


def test_the_window_holds_kernels_of_its_steps(trained):
    _, document = trained
    assert document["gpu"]["kernels_per_step"] > 5
    assert [window["name"] for window in document["windows"]] == ["window", "stacks"]


def test_observing_adds_no_synchronisation(tmp_path_factory):
    done, document = observe(tmp_path_factory, "never_waits", "--no-window")
    assert done.returncode == 0, done.stderr
    assert document["steps"]["count"] == 120
    assert len([loss for loss in document["losses"] if loss is not None]) >= 118
    assert document["losses"][-1] == losses(done.stdout)[0]
    assert document["problems"] == []


def test_a_captured_graph_is_left_alone(tmp_path_factory):
    done, document = observe(tmp_path_factory, "captured", "--no-window")
    plain = execute([sys.executable, str(PROGRAMS / "captured.py")])
    assert done.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert document["problems"] == []


def test_out_of_memory_is_named_with_its_owners(tmp_path_factory):
    done, document = observe(tmp_path_factory, "too_large", "--no-window")
    assert done.returncode == 1
    memory = document["run"]["out_of_memory"]
    assert memory["device"] == "cuda"
    assert memory["requested_bytes"] >= 1 << 42
    assert document["steps"]["count"] == 5
    assert document["memory"]["owners"]["optimizer_state"] > 8 << 20


def test_scaled_losses_are_recorded_unscaled_and_skipped_updates_count(tmp_path_factory):
    done, document = observe(tmp_path_factory, "scaled", "--no-window")
    assert document["steps"]["count"] == 30
    assert document["losses"] == losses(done.stdout)
    assert document["config"]["scaler"]["skipped_updates"] > 0
    scales = document["config"]["scaler"]["scales"]
    assert scales[0] == 2.0**40
    assert scales[-1] < scales[0]
    assert document["config"]["autocast"] == "float16"


def test_memory_lines_name_the_program(tmp_path_factory):
    _, document = observe(tmp_path_factory, "train_cuda", "--memory", "--no-window")
    files = {Path(line["file"]).name for line in document["memory"]["lines"]["at_peak"]}
    assert "train_cuda.py" in files


def test_nvtx_ranges_change_nothing(tmp_path_factory):
    done, document = observe(tmp_path_factory, "train_cuda", "--nvtx", "--no-window")
    assert done.returncode == 0, done.stderr
    assert document["steps"]["count"] == 60
    assert document["problems"] == []


def test_a_host_that_runs_ahead_does_not_make_the_device_look_fast(tmp_path_factory):
    options = ("--no-window", "--warmup", "20")
    done, document = observe(tmp_path_factory, "runs_ahead", *options)
    assert done.returncode == 0, done.stderr
    true_ms = float(done.stdout)
    assert document["steps"]["mean_ms"] == pytest.approx(true_ms, rel=0.1)
    assert document["steps"]["median_ms"] == pytest.approx(true_ms, rel=0.1)
