"""Limits of control groups, both versions, from text and from a made-up file system."""

import pytest

from stepscope.hardware.processor import (
    cgroup_limits,
    core_limit,
    group_paths,
    memory_limit,
)


def make(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_group_paths_of_both_versions():
    paths = group_paths("4:memory:/job\n1:cpu,cpuacct:/job/a:b\n0::/\nnonsense\n")
    assert paths == {"memory": "/job", "cpu": "/job/a:b", "cpuacct": "/job/a:b", "": "/"}


@pytest.mark.parametrize(
    ("text", "cores"), [("200000 100000\n", 2.0), ("max 100000\n", None), ("", None), ("x y", None)]
)
def test_cores_of_version_2(text, cores, tmp_path):
    make(tmp_path, {"sys/fs/cgroup/cpu.max": text})
    assert cgroup_limits(tmp_path)[0] == cores


def test_cores_of_version_1():
    assert core_limit("150000", "100000") == 1.5
    assert core_limit("-1", "100000") is None
    assert core_limit("", "") is None


def test_memory_limit():
    assert memory_limit("1073741824") == 1 << 30
    assert memory_limit("max") is None
    assert memory_limit("9223372036854771712") is None
    assert memory_limit("") is None


def test_the_tightest_group_counts(tmp_path):
    make(
        tmp_path,
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/cpu.max": "100000 100000",
            "sys/fs/cgroup/slice/memory.max": "5000",
            "sys/fs/cgroup/slice/job/cpu.max": "400000 100000",
            "sys/fs/cgroup/slice/job/memory.max": "3000",
        },
    )
    assert cgroup_limits(tmp_path) == (1.0, 3000)


def test_a_container_that_sees_only_its_own_mount(tmp_path):
    make(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../outside/pod\n",
            "sys/fs/cgroup/cpu.max": "250000 100000",
            "sys/fs/cgroup/memory.max": "max",
        },
    )
    assert cgroup_limits(tmp_path) == (2.5, None)


def test_version_1_limits(tmp_path):
    make(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/job\n1:cpu:/job\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "300000",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "7000",
        },
    )
    assert cgroup_limits(tmp_path) == (3.0, 7000)


def test_no_files_no_limits(tmp_path):
    assert cgroup_limits(tmp_path) == (None, None)
