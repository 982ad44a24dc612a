"""The log of a rank's meetings, in a process group of one."""

import threading
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from stepscope.probe.ranks.meetings import watch_meetings
from stepscope.record.row_log import MEETING_COLUMNS, MEETINGS_FILE, MeetingKind
from stepscope.store.table import read_table


@pytest.fixture
def core(tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def guard(problem):
        raise problem

    yield SimpleNamespace(
        options=SimpleNamespace(folder=str(tmp_path)),
        log=SimpleNamespace(off=False, thread=threading.get_ident()),
        sites=SimpleNamespace(locate=lambda kind, depth: 7),
        find_lines=True,
        guard=guard,
        on_end=[],
    )
    dist.destroy_process_group()


@pytest.fixture
def logged(core, tmp_path):
    """Ends the log and returns its rows."""
    watch_meetings(core)

    def end():
        for action in core.on_end:
            action()
        core.on_end.clear()
        return read_table(tmp_path / MEETINGS_FILE, MEETING_COLUMNS)

    yield end
    end()


def test_collectives_are_logged_with_size_and_line(logged):
    dist.all_reduce(torch.ones(3))
    dist.all_gather([torch.zeros(2, dtype=torch.int64)], torch.ones(2, dtype=torch.int64))
    dist.barrier()
    rows = logged()
    kinds = [MeetingKind.ALL_REDUCE, MeetingKind.ALL_GATHER, MeetingKind.BARRIER]
    assert rows["kind"].tolist() == kinds
    assert rows["bytes"].tolist() == [12, 16, 0]
    assert rows["site"].tolist() == [7, 7, 7]
    assert (rows["begun_ns"] == rows["arrived_ns"]).all()
    assert (rows["left_ns"] >= rows["arrived_ns"]).all()


def test_an_asynchronous_one_is_marked(logged):
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.wait()
    assert logged()["asynchronous"].tolist() == [1]


def test_a_backward_says_when_its_graph_was_run(logged):
    seen = []
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: seen.append(gradient.tolist()))
    (weight * 2).sum().backward()
    assert seen == [[2.0, 2.0]]
    (row,) = logged()
    assert row["kind"] == MeetingKind.GRADIENTS
    assert 0 < row["begun_ns"] <= row["arrived_ns"] <= row["left_ns"]


def test_what_a_backward_raises_reaches_the_program(logged):
    weight = torch.ones(2, requires_grad=True)

    def fail(gradient):
        raise ValueError("the program's own")

    weight.register_hook(fail)
    with pytest.raises(ValueError, match="own"):
        (weight * 2).sum().backward()
    dist.barrier()
    rows = logged()
    assert rows["kind"].tolist() == [MeetingKind.GRADIENTS, MeetingKind.BARRIER]
    assert rows["arrived_ns"][0] == 0
    assert (rows["left_ns"] > 0).all()


def test_a_meeting_inside_another_and_those_of_other_threads_are_left_out(logged):
    weight = torch.ones(2, requires_grad=True)
    weight.register_hook(lambda gradient: dist.barrier())
    (weight * 2).sum().backward()
    thread = threading.Thread(target=dist.barrier)
    thread.start()
    thread.join()
    assert logged()["kind"].tolist() == [MeetingKind.GRADIENTS]


def test_everything_is_put_back(core, tmp_path):
    before = torch.autograd.backward, dist.all_reduce, dist.distributed_c10d.barrier
    watch_meetings(core)
    assert dist.all_reduce is not before[1]
    for action in core.on_end:
        action()
    assert (torch.autograd.backward, dist.all_reduce, dist.distributed_c10d.barrier) == before
