"""The machine sampler, on real short-lived processes."""

import errno
import math
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from stepscope.hardware.process_tree import ProcessTree, short_command
from stepscope.launch import sampling as sampler_module
from stepscope.launch.sampling import MachineSampler
from stepscope.record.row_log import SAMPLE_COLUMNS
from stepscope.store.table import Table, read_table

WORKER = "import sys; open(sys.argv[1], 'wb').write(b'x' * 200_000); sys.stdin.read()"
PARENT = f"""
import subprocess, sys
workers = [subprocess.Popen([sys.executable, '-c', {WORKER!r}, sys.argv[1] + str(i)],
                            stdin=subprocess.PIPE) for i in range(3)]
print('ready', flush=True)
for command in sys.stdin:
    if command.strip() == 'end workers':
        for worker in workers:
            worker.communicate()
        print('ended', flush=True)
"""


@pytest.fixture
def program(tmp_path):
    """A process with three children, told what to do on its stdin."""
    child = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "written")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.communicate()


def wait_until(condition, seconds=200.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_program_and_children_are_sampled(program, tmp_path):
    sampler = MachineSampler(program.pid, tmp_path / "samples.npy", interval_s=0.02)
    before = time.monotonic_ns()
    sampler.start()
    wait_until(lambda: sampler.rows >= 5)
    sampler.stop()
    rows = read_table(tmp_path / "samples.npy")
    assert rows.dtype.names == SAMPLE_COLUMNS
    assert len(rows) == sampler.rows
    assert rows["processes"].max() == 4
    assert rows["rss_bytes"].min() > 1 << 20
    assert np.all(np.diff(rows["t_ns"]) > 0)
    assert before < rows["t_ns"][0] < time.monotonic_ns()
    assert np.isnan(rows["gpu_percent"]).all()
    assert sampler.problem is None
    assert sampler.latest["processes"] == 4
    assert set(sampler.commands.values()) == {f"{os.path.basename(sys.executable)} -c"}
    assert len(sampler.commands) == 3


def test_counters_never_go_backwards_when_processes_end(program):
    tree = ProcessTree(program.pid, {})
    wait_until(lambda: tree.refresh() or tree.sample()["processes"] == 4)
    first = tree.sample()
    program.stdin.write("end workers\n")
    program.stdin.flush()
    assert program.stdout.readline() == "ended\n"
    second = tree.sample()
    assert second["processes"] == 1
    assert second["read_bytes"] >= first["read_bytes"]
    assert second["write_bytes"] >= first["write_bytes"]


FORKING = """
import os, sys
held = bytearray(os.urandom(1 << 20) * 100)
sys.stdin.readline()
for own in range(3):
    if os.fork() == 0:
        mine = bytearray(os.urandom(1 << 20) * 10)
        os.write(1, b'.')
        sys.stdin.read()
        os._exit(0)
os.write(1, b'.')
sys.stdin.read()
"""


@pytest.fixture
def forking():
    """A process of more than 100 MB that forks three of 10 MB of their own once it is told to."""
    child = subprocess.Popen(
        [sys.executable, "-c", FORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield child
    child.communicate()


def forked(child):
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.read(4) == "...."


@pytest.mark.skipif(not os.path.exists("/proc/self/smaps_rollup"), reason="not told here")
def test_what_forked_workers_have_of_their_parent_counts_once(forking):
    forked(forking)
    tree = ProcessTree(forking.pid, {})
    tree.refresh()
    found = tree.sample()
    assert found["processes"] == 4
    assert 130 < found["rss_bytes"] / (1 << 20) < 190


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/children"), reason="not told here")
def test_workers_are_seen_before_the_process_table_is_read_again(forking, tmp_path, monkeypatch):
    monkeypatch.setattr(sampler_module, "_REFRESH_S", 1e9)
    sampler = MachineSampler(forking.pid, tmp_path / "samples.npy", interval_s=0.02)
    sampler.start()
    wait_until(lambda: sampler.rows >= 2)
    forked(forking)
    wait_until(lambda: sampler.latest["processes"] == 4)
    sampler.stop()
    assert sampler.problem is None


def test_processor_time_of_a_busy_process():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        tree = ProcessTree(child.pid, {})
        tree.refresh()
        assert math.isnan(tree.sample()["cpu_percent"])
        wait_until(lambda: psutil.Process(child.pid).cpu_times().user > 0.2)
        assert 0 < tree.sample()["cpu_percent"] < 150
    finally:
        child.kill()
        child.wait()


def test_a_killed_program_ends_the_sampler(program, tmp_path):
    sampler = MachineSampler(program.pid, tmp_path / "samples.npy", interval_s=0.02)
    sampler.start()
    wait_until(lambda: sampler.rows >= 2)
    program.kill()
    program.communicate()
    wait_until(lambda: not sampler.is_alive())
    sampler.stop()
    assert sampler.problem is None
    assert len(read_table(tmp_path / "samples.npy")) == sampler.rows


def test_a_program_that_is_already_gone_gives_an_empty_table(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    sampler = MachineSampler(child.pid, tmp_path / "samples.npy")
    sampler.start()
    sampler.join(200)
    sampler.stop()
    assert sampler.rows == 0
    assert len(read_table(tmp_path / "samples.npy")) == 0


def test_a_full_disk_ends_the_sampler_quietly(program, tmp_path, monkeypatch):
    class SmallTable(Table):
        def __init__(self, path, columns):
            super().__init__(path, columns, chunk_rows=3)

        def grow(self):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sampler_module, "Table", SmallTable)
    sampler = MachineSampler(program.pid, tmp_path / "samples.npy", interval_s=0.01)
    sampler.start()
    wait_until(lambda: not sampler.is_alive())
    sampler.stop()
    assert "No space left" in sampler.problem.text
    assert len(read_table(tmp_path / "samples.npy")) == 3


def test_a_folder_that_is_not_there_is_a_problem_not_an_error(program, tmp_path):
    sampler = MachineSampler(program.pid, tmp_path / "missing" / "samples.npy")
    sampler.start()
    sampler.stop()
    assert "not sampled" in sampler.problem.text


def test_a_table_grows_past_its_first_chunk(program, tmp_path, monkeypatch):
    monkeypatch.setattr(sampler_module, "Table", lambda path, columns: Table(path, columns, 2))
    sampler = MachineSampler(program.pid, tmp_path / "samples.npy", interval_s=0.01)
    sampler.start()
    wait_until(lambda: sampler.rows >= 5)
    sampler.stop()
    rows = read_table(tmp_path / "samples.npy")
    assert len(rows) == sampler.rows
    assert np.all(rows["t_ns"] > 0)


def test_the_gpu_is_sampled_with_the_programs_own_pids(program, tmp_path, monkeypatch):
    asked = []

    class FakeGpu:
        def sample(self, own):
            asked.append(set(own))
            return {"gpu_percent": 42.0}

    monkeypatch.setattr(sampler_module, "open_gpu", lambda index: FakeGpu())
    sampler = MachineSampler(program.pid, tmp_path / "samples.npy", gpu_index=0, interval_s=0.02)
    sampler.start()
    wait_until(lambda: sampler.rows >= 2)
    sampler.stop()
    assert read_table(tmp_path / "samples.npy")["gpu_percent"][0] == 42
    assert program.pid in asked[0]


def test_stop_before_start_is_harmless(tmp_path):
    MachineSampler(os.getpid(), tmp_path / "samples.npy").stop()
    assert not (tmp_path / "samples.npy").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["/usr/bin/python3", "/home/me/train.py", "--token", "secret"], "python3 train.py"),
        (
            ["python", "-u", "-m", "torch.distributed.run", "x.py"],
            "python -m torch.distributed.run",
        ),
        (["python", "-c", "print('secret')"], "python -c"),
        (["/usr/bin/curl", "https://me:secret@host"], "curl"),
        (["python", "-m"], "python"),
        ([], ""),
    ],
)
def test_short_commands_keep_no_secrets(argv, words):
    assert short_command(argv) == words
