import json
import subprocess
import sys

import pytest

from stepscope.probe import memory_history
from stepscope.probe.memory_history import MemoryHistory
from stepscope.probe.program_state import state_bytes, watch_out_of_memory
from stepscope.record.errors import MissingExtra, UsageError
from stepscope.record.problems import is_out_of_memory
from stepscope.store.memory_lines import CPU_MARKS, CPU_RAW, CUDA_LINES, reduce_memray

torch = pytest.importorskip("torch")
nn = torch.nn


def test_tied_weights_gradients_and_adam_state_count_once():
    model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model[1].weight = model[0].weight
    model.register_buffer("steps", torch.zeros(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 10)).sum().backward()
    optimizer.step()
    found = state_bytes([optimizer, optimizer], [model, model[0]])
    assert found == {
        "cpu": {
            "parameters": 400,
            "gradients": 400,
            "optimizer_state": 804,  # two moments and the step's scalar
            "buffers": 12,
        }
    }


def test_parameters_that_are_views_of_one_buffer_count_it_once():
    flat = torch.zeros(100)
    views = [nn.Parameter(flat[:40]), nn.Parameter(flat[40:])]
    found = state_bytes([torch.optim.SGD(views)], [])
    assert found["cpu"]["parameters"] == 400


def test_lazy_and_meta_parameters_own_nothing_yet():
    assert state_bytes([], [nn.LazyLinear(3), nn.Linear(3, 3, device="meta")]) == {}


def test_state_nested_in_lists_and_sparse_gradients_are_counted():
    weight = nn.Parameter(torch.zeros(8))
    optimizer = torch.optim.LBFGS([weight])
    optimizer.state[weight]["old_dirs"] = [torch.zeros(8), torch.zeros(8)]
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    found = state_bytes([optimizer], [table])["cpu"]
    assert found["optimizer_state"] == 64
    assert found["gradients"] == 2 * 4 * 4 + 2 * 8


def test_of_a_sharded_parameter_the_local_part_counts():
    class Sharded:
        is_leaf, grad = True, None
        device = torch.device("cpu")
        _local_tensor = torch.zeros(5)

    module = nn.Module()
    module._parameters["weight"] = Sharded()
    assert state_bytes([], [module])["cpu"]["parameters"] == 20


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("OutOfMemoryError", ""),
        ("MemoryError", ""),
        ("RuntimeError", "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        ("numpy._core._exceptions._ArrayMemoryError", "Unable to allocate 8. TiB"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
    ],
)
def test_running_out_of_memory_is_recognised(name, message):
    assert is_out_of_memory(name, message)


@pytest.mark.parametrize(
    ("name", "message"),
    [("RuntimeError", "CUDA error: device-side assert triggered"), ("KeyError", "memory")],
)
def test_other_errors_are_not_taken_for_it(name, message):
    assert not is_out_of_memory(name, message)


def test_torch_really_fails_as_recognised_on_cpu():
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(type(error.value).__name__, str(error.value))


def test_watching_cuda_does_not_initialise_it(tmp_path):
    code = """
import sys, torch
from pathlib import Path
from stepscope.probe.memory_history import MemoryHistory
from stepscope.probe.program_state import watch_out_of_memory
watch_out_of_memory(print)
history = MemoryHistory()
history.start("cuda", Path(sys.argv[1]))
history.mark()
history.reduce()
history.stop()
assert not torch.cuda.is_initialized()
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=60)
    assert not (tmp_path / CUDA_LINES).exists()


def test_the_raw_recording_stops_at_its_limit_and_says_so(tmp_path, monkeypatch):
    pytest.importorskip("memray")
    monkeypatch.setattr(memory_history, "MAX_RAW_BYTES", 0)
    history = MemoryHistory()
    history.start("cpu", tmp_path)
    for _ in range(memory_history._SIZE_CHECK_MARKS + 1):
        history.mark()
    assert history._tracker is None
    assert (tmp_path / CPU_MARKS).read_text().endswith(" 1\n")
    history.stop()
    result = reduce_memray(tmp_path, keep=True)
    assert result is not None
    assert result.truncated
    assert (tmp_path / CPU_RAW).exists()


def test_memray_missing_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "memray", None)
    with pytest.raises(MissingExtra, match=r"stepscope\[memory\]"):
        MemoryHistory().start("cpu", tmp_path)


def test_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(UsageError, match="tpu"):
        MemoryHistory().start("tpu", tmp_path)


class FakeMemory:
    """What `torch.cuda.memory` would have recorded on two devices."""

    @staticmethod
    def _snapshot():
        frame = {"name": "f", "filename": "/p/train.py", "line": 3}
        entry = {"action": "alloc", "addr": 1, "size": 10, "frames": [frame], "time_us": 5}
        more = {**entry, "size": 99}
        return {"segments": [], "device_traces": [[entry], [more], []]}


def test_the_device_with_the_highest_peak_is_reduced():
    class Cuda:
        memory = FakeMemory

        @staticmethod
        def memory_stats(index):
            return {"allocated_bytes.all.peak": 512 * index, "num_alloc_retries": 4}

    class Torch:
        cuda = Cuda

    lines = memory_history._reduce_cuda(Torch, None, None)
    assert (lines.device, lines.peak_bytes, lines.retries) == ("cuda:1", 99, 4)
    assert lines.allocator_peak_bytes == 512


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_history_names_the_planted_lines_and_oom_is_written(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(CUDA_PROGRAM)
    subprocess.run([sys.executable, str(program), str(tmp_path)], check=True, timeout=200)
    lines = json.loads((tmp_path / CUDA_LINES).read_text())
    source = program.read_text().splitlines()
    assert "planted peak" in source[lines["at_peak"][0]["line"] - 1]
    assert lines["at_peak"][0]["bytes"] == pytest.approx(400_000_000, rel=1e-3)
    assert "planted growth" in source[lines["growth"][0]["line"] - 1]
    assert lines["growth"][0]["bytes"] == 7 * 4_000_000
    assert lines["allocator_peak_bytes"] == pytest.approx(lines["peak_bytes"], rel=0.01)
    (fact,) = json.loads((tmp_path / "oom.json").read_text())
    assert fact["requested_bytes"] >= 1 << 45
    assert fact["allocated_bytes"] > 0
    assert 0 < fact["free_bytes"] < fact["total_bytes"]


CUDA_PROGRAM = """
import json, sys, torch
from pathlib import Path
from stepscope.probe.memory_history import MemoryHistory
from stepscope.probe.program_state import watch_out_of_memory
from stepscope.record.problems import is_out_of_memory
folder = Path(sys.argv[1])
facts, kept = [], []
history = MemoryHistory()
watch_out_of_memory(lambda fact: (facts.append(fact), history.reduce()))
history.start("cuda", folder)
assert not torch.cuda.is_initialized()
model = torch.nn.Linear(1000, 1000, device="cuda")
optimizer = torch.optim.Adam(model.parameters())
def peak():
    return torch.ones(100_000_000, device="cuda").sum()  # planted peak
peak()
for step in range(8):
    kept.append(torch.zeros(1_000_000, device="cuda"))  # planted growth
    model(torch.randn(64, 1000, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    history.mark()
try:
    torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
except RuntimeError as error:
    assert is_out_of_memory(type(error).__name__, str(error))
(folder / "oom.json").write_text(json.dumps(facts))
assert (folder / "memory-cuda.json").exists()
history.stop()
assert history.problem is None
"""


def test_watching_says_nothing_while_there_is_memory():
    facts = []
    watch_out_of_memory(facts.append)
    watch_out_of_memory(facts.append)
    assert facts == []
