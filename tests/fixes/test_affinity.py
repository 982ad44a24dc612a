"""Cores next to the GPU."""

import os

import pytest
import torch
from fixing import fixed

from stepscope.fixes.data.affinity import (
    CORES_NOT_ALLOWED,
    GPU_NODE_UNKNOWN,
    ON_NODE_ALREADY,
    ONE_NUMA_NODE,
    cores_near_gpu,
)
from stepscope.fixes.inspect.devices import move_threads
from stepscope.fixes.registry import fix_named
from stepscope.record.errors import UsageError
from stepscope.record.fix import NotApplied
from stepscope.record.fix_words import sentence


@pytest.fixture
def machine(tmp_path):
    """Two nodes of four processors; the first GPU sits at the second node."""
    for node, cpus in enumerate(("0-3", "4-7", "")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    for bus, uuid, node in (("0000:c1:00.0", "GPU-aa", 1), ("0000:d1:00.0", "GPU-bb", 0)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: x\nGPU UUID:\t {uuid}\n")
        folder = tmp_path / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return tmp_path


EVERY = set(range(8))


@pytest.mark.parametrize(
    ("environ", "cpus"),
    [
        ({}, {4, 5, 6, 7}),
        ({"CUDA_VISIBLE_DEVICES": "1"}, {0, 1, 2, 3}),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb,GPU-aa"}, {0, 1, 2, 3}),
        ({"LOCAL_RANK": "1"}, {0, 1, 2, 3}),
        ({"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "1,0"}, {4, 5, 6, 7}),
    ],
)
def test_the_cores_of_the_gpus_node_are_chosen(machine, environ, cpus):
    chosen, record = cores_near_gpu(environ, EVERY, machine)
    assert chosen == cpus
    assert sentence(record).startswith("4 of 8 cores")


def test_only_allowed_cores_are_chosen(machine):
    assert cores_near_gpu({}, {3, 4, 5}, machine)[0] == {4, 5}


@pytest.mark.parametrize(
    ("environ", "allowed", "why"),
    [
        ({}, {0, 1}, NotApplied(CORES_NOT_ALLOWED, value=1)),
        ({}, {4, 5}, NotApplied(ON_NODE_ALREADY, value=1)),
        ({"CUDA_VISIBLE_DEVICES": ""}, EVERY, NotApplied(GPU_NODE_UNKNOWN)),
        ({"LOCAL_RANK": "7"}, EVERY, NotApplied(GPU_NODE_UNKNOWN)),
    ],
)
def test_where_there_is_no_choice_it_says_why(machine, environ, allowed, why):
    assert cores_near_gpu(environ, allowed, machine) == (set(), why)


def test_a_machine_with_one_node_is_told(tmp_path):
    assert cores_near_gpu({}, EVERY, tmp_path) == (set(), NotApplied(ONE_NUMA_NODE))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_this_process_is_moved_and_its_children_with_it():
    before = os.sched_getaffinity(0)
    try:
        move_threads({min(before)})
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        move_threads(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_machine_without_a_gpu_is_told(tmp_path):
    with fixed(tmp_path, "affinity") as run:
        pass
    assert run.fixes()["affinity"]["reasons"] == ["no CUDA device"]


def test_its_edit_and_its_values():
    assert "numactl" in fix_named("affinity").edit(None, "x = 1").words
    with pytest.raises(UsageError, match="takes no value"):
        fix_named("affinity").parse("0")
