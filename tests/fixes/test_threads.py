"""How many threads torch uses on the CPU."""

import threading

import pytest
import torch
from fixing import fixed
from torch.utils.data import DataLoader, TensorDataset

from stepscope.fixes.data import threads
from stepscope.fixes.inspect import devices
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError


@pytest.fixture(autouse=True)
def _as_before():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_torch_uses_that_many(tmp_path):
    torch.set_num_threads(2)
    with fixed(tmp_path, "threads=1") as run:
        assert torch.get_num_threads() == 1
    fact = run.fixes()["threads"]
    assert fact["where"] == ["2 → 1 threads"]
    assert fact["kind"] == "numeric"


def test_the_programs_own_number_gives_way(tmp_path):
    torch.set_num_threads(1)
    with fixed(tmp_path, "threads=2") as run:
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 2
    assert "2 threads where" in run.fixes()["threads"]["where"][1]
    assert "test_threads.py" in run.fixes()["threads"]["where"][1]


def test_other_threads_keep_their_own_number(tmp_path):
    seen = []

    def aside():
        torch.set_num_threads(1)
        seen.append(torch.get_num_threads())

    with fixed(tmp_path, "threads=2"):
        thread = threading.Thread(target=aside)
        thread.start()
        thread.join()
    assert seen == [1]


def test_by_itself_it_leaves_a_core_to_every_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "allowed_cores", lambda: 3)
    torch.set_num_threads(2)
    data = TensorDataset(torch.arange(4))
    with fixed(tmp_path, "threads") as run:
        assert torch.get_num_threads() == 3
        list(DataLoader(data))
        assert torch.get_num_threads() == 3
        list(DataLoader(data, num_workers=1))
        assert torch.get_num_threads() == 2
        list(DataLoader(data, num_workers=2))
        list(DataLoader(data, num_workers=1))
        assert torch.get_num_threads() == 1
    assert run.fixes()["threads"]["where"] == ["2 → 3 threads", "3 → 2 threads", "2 → 1 threads"]


def test_a_number_torch_uses_already_is_told(tmp_path):
    torch.set_num_threads(2)
    with fixed(tmp_path, "threads=2") as run:
        pass
    assert run.fixes()["threads"]["reasons"] == ["torch already uses 2 threads"]


def test_hyper_threads_count_once(tmp_path, monkeypatch):
    for number in range(4):
        folder = tmp_path / f"cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{number % 2},{number % 2 + 2}\n")
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(devices, "cgroup_limits", lambda: (None, None))
    assert devices.allowed_cores(tmp_path) == 2
    assert devices.allowed_cpus() == 4
    monkeypatch.setattr(devices, "cgroup_limits", lambda: (1.5, None))
    assert devices.allowed_cpus() == 2


def test_its_edit_and_its_values():
    edit = fix_named("threads").edit(4, "model = Model()")
    assert edit.before == ("torch.set_num_threads(4)",)
    with pytest.raises(UsageError, match="a number"):
        fix_named("threads").parse("all")
