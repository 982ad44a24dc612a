"""The studies on a CUDA device, at tiny size."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module", autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def study(tmp_path, *arguments):
    command = [sys.executable, "-m", "stepscope.cli.main", "bench", *arguments]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "bench"), "--json"],
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["study"]


@pytest.mark.parametrize(
    ("model", "shape", "kind"),
    [("lstm", ("--length", "32"), "recurrent"), ("unet", ("--size", "32"), "convolution")],
)
def test_a_model_learns_the_same_on_both_devices(tmp_path, model, shape, kind):
    found = study(
        tmp_path, model, "--study", "cpu-gpu", *shape, "--batch", "8", "--samples", "64",
        "--test-samples", "32", "--rounds", "1",
    )  # fmt: skip
    assert found["cpu"]["status"] == found["gpu"]["status"] == "ok"
    assert found["speedup"]["low"] < found["speedup"]["ratio"] < found["speedup"]["high"]
    assert found["agreement"]["first_loss_relative"] < 0.05
    rows = {row["kind"]: row for row in found["operators"]}
    assert rows[kind]["cpu_ms"] > 0
    assert rows[kind]["gpu_ms"] > 0
    assert rows[kind]["kernels"] > 0
    assert found["waiting"]["busy_ms"] <= found["waiting"]["step_ms"]


@pytest.mark.slow
def test_techniques_make_room_for_larger_batches(tmp_path):
    found = study(
        tmp_path, "simple_cnn", "--study", "memory", "--memory-limit-gib", "2", "--size", "224",
        "--batch", "16", "--seconds", "0.3",
    )  # fmt: skip
    rows = {row["technique"]: row for row in found["rows"]}
    assert rows["fp32"]["bound"] == "memory"
    assert rows["fp32"]["largest_batch"] < rows["fp32"]["too_large"]
    assert rows["fp32"]["peak_memory_bytes"] < 2 << 30
    assert rows["AMP"]["of_first"] < 1
    assert rows["AMP"]["largest_batch"] >= rows["fp32"]["largest_batch"]
    assert rows["accumulation"]["largest_batch"] > rows["fp32"]["largest_batch"]
    assert rows["fused attention"]["status"] == "not applicable"
