"""Where the host waits for the device, with tensors that only claim to be on one."""

import inspect
from time import monotonic_ns
from types import SimpleNamespace

import pytest

from stepscope.record.facts import HostWait, ProblemFact, SiteFact
from stepscope.record.probe_options import ProbeOptions
from stepscope.store.json_lines import read_facts
from stepscope.store.table import read_table

pytest.importorskip("torch")


@pytest.fixture
def core(tmp_path):
    from stepscope.probe.core import Core

    core = Core(ProbeOptions(str(tmp_path), monotonic_ns()))
    core.stepping = True
    return core


@pytest.fixture
def read(core):
    from stepscope.probe.points import host_waits

    return host_waits._reading(core, lambda tensor: tensor.value, HostWait.ITEM)


def waits(core, tmp_path):
    """What was noted: kind of wait, line and count."""
    table = read_table(tmp_path / "sites.npy")
    sites = read_facts(tmp_path / "facts.jsonl").all(SiteFact)
    return [
        (f"{site.kind}:{site.wait}", site.line, int(table[site.id]["count"]))
        for site in sites
        if site.wait is not None
    ]


def tensor(on_device=True):
    return SimpleNamespace(value=0.5, is_cuda=on_device)


def test_a_read_from_the_device_is_counted_at_its_line(core, read, tmp_path):
    for _ in range(3):
        line = inspect.currentframe().f_lineno + 1
        assert read(tensor()) == 0.5
    assert waits(core, tmp_path) == [("sync:item", line, 3)]


def test_a_read_from_the_host_is_no_wait(core, read, tmp_path):
    assert read(tensor(on_device=False)) == 0.5
    assert waits(core, tmp_path) == []


def test_waits_before_the_loop_are_told_apart(core, read, tmp_path):
    core.stepping = False
    read(tensor())
    assert [what for what, _, _ in waits(core, tmp_path)] == ["setup:item"]


def test_the_observers_own_waits_are_not_the_programs(core, read, tmp_path):
    core.log.observing = True
    assert read(tensor()) == 0.5
    assert waits(core, tmp_path) == []


def test_a_wait_that_raises_is_left_and_passes_its_error_on(core, tmp_path):
    from stepscope.probe.points import host_waits

    def broken():
        raise RuntimeError("CUDA error")

    wait = host_waits._waiting(core, broken, "synchronize")
    with pytest.raises(RuntimeError, match="CUDA error") as raised:
        wait()
    assert [entry.name for entry in raised.traceback] == [
        inspect.currentframe().f_code.co_name,
        "broken",
    ]
    assert core.log.depth == 0
    assert [what for what, _, _ in waits(core, tmp_path)] == ["sync:synchronize"]


def test_where_torch_warns_of_waits_it_names_the_program(core, tmp_path, monkeypatch):
    import torch

    from stepscope.probe.patches import Patches
    from stepscope.probe.points import host_waits

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", asked := [].append)
    own, patches = torch.Tensor.item, Patches()
    host_waits.patch_waits(core, patches)
    host_waits.patch_sync_warnings(core, patches, patches)
    try:
        torch.cuda.set_sync_debug_mode("error")
        assert torch.Tensor.item is not own
        torch.cuda.set_sync_debug_mode("warn")
        torch.cuda.set_sync_debug_mode(1)
        patches.suspend()
        patches.resume()
        assert "item" not in vars(torch.Tensor)
        assert not hasattr(torch.nonzero, "__wrapped__")
    finally:
        patches.restore()
    assert asked.__self__ == ["error", "warn", 1]
    problems = read_facts(tmp_path / "facts.jsonl").all(ProblemFact)
    assert [problem.kind for problem in problems] == ["waits_unseen"]
