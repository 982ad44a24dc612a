"""`stepscope bench` on a GPU: its clock, memory, use and energy; both devices in one grid."""

import json
import subprocess
import sys

import pytest

from stepscope.bench.grid import Point
from stepscope.bench.measure_point import measure

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_point_on_the_gpu_knows_its_machine(tmp_path):
    point = Point.of("resnet50", "infer", 32, "cuda", seconds=2)
    record = measure(point, tmp_path / "process", 300)
    assert record.status == "ok", record.why
    assert record.measured.clock == "cuda events"
    machine = record.machine
    assert 0.3 < machine.gpu_busy <= 1
    assert 20 < machine.energy_j < 5000
    assert machine.sm_mhz > 100
    assert machine.other_processes is None or machine.other_processes >= 0


def test_fixes_take_hold_and_are_told(tmp_path):
    point = Point.of("resnet18", "train", 32, "cuda", ("amp=bf16", "channels_last"), seconds=0.5)
    record = measure(point, tmp_path / "process", 300)
    assert record.status == "ok", record.why
    assert [(fix.name, fix.state) for fix in record.fixes] == [
        ("amp", "applied"),
        ("channels_last", "applied"),
    ]
    assert record.measured.arithmetic == "bf16"


def test_too_large_a_batch_is_out_of_memory(tmp_path):
    point = Point.of("resnet50", "train", 256, "cuda", steps=3, memory_limit_gib=2)
    record = measure(point, tmp_path / "process", 300)
    assert record.status == "out_of_memory"
    assert record.why


def test_a_grid_over_both_devices(tmp_path):
    command = [sys.executable, "-m", "stepscope.cli.main", "bench", "resnet18", "--json"]
    command += ["--mode", "infer", "--batch", "16", "--device", "cpu,cuda", "--rounds", "1"]
    done = subprocess.run(
        [*command, "--seconds", "0.5"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    cpu, cuda = json.loads(done.stdout)["points"]
    assert (cpu["device"], cuda["device"]) == ("cpu", "cuda")
    assert cuda["samples_per_s"] > cpu["samples_per_s"]
    assert 0 < cuda["mfu"] < 1.2
