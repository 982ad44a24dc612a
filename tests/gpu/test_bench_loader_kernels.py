"""The loader grid and the kernels of a model on a CUDA device."""

import json
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu

BENCH = [sys.executable, "-m", "stepscope.cli.main", "bench"]


@pytest.fixture(scope="module", autouse=True)
def _device():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def bench(tmp_path, *words):
    done = subprocess.run(
        [*BENCH, *words, "--json"],
        capture_output=True, text=True, timeout=280, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_batches_reach_the_device_pinned_or_not(tmp_path):
    words = ["--batch", "64", "--workers", "0,2", "--prefetch", "2", "--seconds", "0.5"]
    whole = bench(tmp_path, "loader", "resnet18", *words, "--device", "cuda", "--samples", "512")
    points = whole["points"]
    assert [(p["workers"], p["pin"]) for p in points] == [
        (0, False), (0, True), (2, False), (2, True),
    ]  # fmt: skip
    assert {p["status"] for p in points} == {"ok"}
    assert all(p["samples_per_s"] > 0 for p in points)
    assert whole["loader"]["device_name"]


def test_the_kernels_of_a_step_are_held_against_the_ceilings(tmp_path):
    found = bench(tmp_path, "kernels", "resnet18", "--batch", "64", "--timeout", "120")["kernels"]
    assert found["on"] == "device"
    assert found["launched"] > 50
    assert found["known_share"] > 0.7
    names = [one["name"] for one in found["operators"]]
    assert "aten::convolution_backward" in names
    products = [one for one in found["operators"] if one["category"] == "convolution"]
    assert all(one["flops_per_s"] > 0 for one in products)
    if shutil.which("ncu") is None:
        assert found["ncu"]["why_not"] == "ncu is not on the PATH"
    elif found["ncu"]["used"]:
        assert any(one["counted"] for one in found["operators"])
    else:
        assert found["ncu"]["why_not"]


def test_fixes_apply_to_the_step_that_is_recorded(tmp_path):
    words = ["mlp", "--batch", "64", "--fix", "amp=bf16", "--timeout", "120"]
    found = bench(tmp_path, "kernels", *words)["kernels"]
    assert [(fix["name"], fix["state"]) for fix in found["applied"]] == [("amp", "applied")]
    assert any(one["dtype"] == "bf16" for one in found["operators"])
