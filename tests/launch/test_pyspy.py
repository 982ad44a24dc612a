import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepscope.analyze.run.host_code import host_code
from stepscope.launch import sampling
from stepscope.record.errors import MissingExtra
from stepscope.record.problems import ProblemKind

PROGRAM = """
import threading, time
def hot(seconds):
    total = 0
    while time.process_time() < seconds:
        for i in range(1_000_000):
            total += i * i  # planted
    return total
over = threading.Event()
threading.Thread(target=over.wait, name="odd; one").start()
print("up", flush=True)
hot(1.2)
over.set()
"""


@pytest.fixture
def spy():
    try:
        return sampling.PySpy()
    except MissingExtra:
        pytest.skip("py-spy is not installed")


def run_program(tmp_path, source=PROGRAM):
    path = tmp_path / "a;b" / "hot loop.py"
    path.parent.mkdir()
    path.write_text(source)
    child = subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child, path


def start(spy, child, folder):
    spy.start(child.pid, folder)
    if spy.problem and spy.problem.kind is ProblemKind.STACKS_DENIED:
        child.kill()
        child.communicate()
        pytest.skip(spy.problem.text)


def test_the_planted_hot_line_comes_first(spy, tmp_path):
    child, path = run_program(tmp_path)
    start(spy, child, tmp_path)
    child.communicate()
    spy.stop()
    assert spy.problem is None
    assert spy.samples > 20
    text = (tmp_path / sampling.STACKS_FILE).read_text()
    code = host_code(text, sampling.STACK_RATE_HZ, child.pid)
    first = code.functions[0]
    assert (first.name, first.file) == ("hot", str(path))
    lines = path.read_text().splitlines()
    assert lines[code.lines[0].line - 1].strip().startswith(("total +=", "for i in"))
    assert code.sampled_s > 0.2
    assert {thread.name: thread.main for thread in code.threads} == {
        "MainThread": True,
        "odd; one": False,
    }


def test_stop_writes_what_there_is_while_the_program_goes_on(spy, tmp_path):
    child, _ = run_program(tmp_path, PROGRAM.replace("hot(1.2)", "hot(600)"))
    start(spy, child, tmp_path)
    time.sleep(1)  # for a hundred samples; one is enough
    spy.stop()
    assert child.poll() is None
    child.kill()
    child.communicate()
    assert spy.problem is None
    assert "hot" in (tmp_path / sampling.STACKS_FILE).read_text()


def test_a_program_that_is_killed_and_not_yet_reaped_does_not_hang_the_end(spy, tmp_path):
    child, _ = run_program(tmp_path, PROGRAM.replace("hot(1.2)", "hot(600)"))
    start(spy, child, tmp_path)
    time.sleep(1)  # for a hundred samples; one is enough
    child.kill()
    spy.stop()
    child.communicate()
    assert "hot" in (tmp_path / sampling.STACKS_FILE).read_text()


def test_a_program_already_gone_is_one_clear_line(spy, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    spy.start(child.pid, tmp_path)
    spy.stop()
    assert spy.problem is not None
    assert spy.problem.kind is ProblemKind.STACKS_FAILED
    assert "\n" not in spy.problem.text


def fake(tmp_path, script):
    """A py-spy that behaves as told."""
    path = tmp_path / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    spied = sampling.PySpy.__new__(sampling.PySpy)
    spied.__init__()
    spied._program = str(path)
    return spied


def test_ptrace_not_permitted_says_what_to_do(spy, tmp_path):
    spied = fake(tmp_path, "echo 'Error: Permission Denied: Try running again'; exit 1")
    spied.start(os.getpid(), tmp_path)
    assert spied.problem is not None
    assert "SYS_PTRACE" in spied.problem.text
    spied.stop()


def test_a_python_that_is_not_up_yet_is_tried_again(spy, tmp_path):
    count = tmp_path / "count"
    spied = fake(tmp_path, f"echo x >> {count}; echo 'Error: no python here'; exit 1")
    spied.start(os.getpid(), tmp_path)
    assert len(count.read_text().split()) == sampling._ATTEMPTS
    assert spied.problem.text == "py-spy failed: no python here"


def test_one_that_never_ends_is_ended(spy, tmp_path, monkeypatch):
    monkeypatch.setattr(sampling, "_FINISH_S", 0.3)
    spied = fake(tmp_path, "trap '' INT; echo Sampling process; while :; do sleep 0.1; done")
    spied.start(os.getpid(), tmp_path)
    process = spied._process
    assert process is not None
    spied.stop()
    assert process.returncode == -9
    assert spied.problem.kind is ProblemKind.STACKS_TIMED_OUT


def test_a_missing_py_spy_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(sampling.sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(sampling.shutil, "which", lambda _: None)
    with pytest.raises(MissingExtra, match=r"stepscope\[python\]"):
        sampling.PySpy()


def test_nothing_started_nothing_to_stop(spy):
    spy.stop()
    assert spy.problem is None
    assert spy._output == Path()
