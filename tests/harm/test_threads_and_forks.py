"""Threads and forks around the kernel window: the program ends as it would without us."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from bare_and_observed import TRAINING, bare_and_observed

IN_A_THREAD = "no kernel window: the steps do not run in the main thread"

THREAD = """
def train(steps):
    for _ in range(steps):
        print(step(), flush=True)

thread = threading.Thread(target=train, args=({steps},))
thread.start()
thread.join()
print("ended")
"""

DAEMON = """
def train():
    for number in range(1_000_000):
        step()
        if number == 7:
            reached.set()

reached = threading.Event()
threading.Thread(target=train, daemon=True).start()
reached.wait()
print("ended")
"""

IN_TURN = """
def train():
    print(step(), flush=True)

for _ in range(30):
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""

BESIDE = """
def compute():
    print(torch.ones(4).sum().item(), flush=True)

for _ in range(20):
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    print(step(), flush=True)
"""

FORK = """
for number in range(40):
    print(step(), flush=True)
    if number == {at}:
        child = os.fork()
        if child == 0:
            print(step())
            {end}
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

FORK_IN_A_THREAD = """
def fork():
    child = os.fork()
    if child == 0:
        print(torch.ones(4).sum().item())
        sys.stdout.flush()
        os._exit(4)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

for number in range(20):
    print(step(), flush=True)
    if number == 6:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
"""

WORKERS = """
from torch.utils.data import DataLoader, TensorDataset

for epoch in range(6):
    for x, in DataLoader(TensorDataset(torch.randn(12, 16)), batch_size=4, num_workers=1):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(loss.item(), flush=True)
"""

EXEC = """
for number in range(20):
    print(step(), flush=True)
    if number == 6:
        os.execv("/bin/echo", ["echo", "replaced"])
"""

ENDS = ["sys.exit(3)", "raise ValueError", "os._exit(5)", "os.execv('/bin/true', ['true'])"]


@pytest.mark.parametrize("steps", [6, 30], ids=["ends_inside_the_window", "ends_later"])
def test_steps_of_a_thread_are_not_recorded_and_we_say_so(tmp_path, steps):
    pair = bare_and_observed(tmp_path, THREAD.format(steps=steps))
    assert pair.same, pair.observed
    assert pair.observed.stderr == pair.bare.stderr
    assert pair.problems == [IN_A_THREAD]


@pytest.mark.parametrize("program", [DAEMON, IN_TURN], ids=["daemon", "in_turn"])
def test_threads_that_train_end_as_without_us(tmp_path, program):
    pair = bare_and_observed(tmp_path, program)
    assert pair.same, pair.observed
    assert pair.observed.stderr == pair.bare.stderr


@pytest.mark.parametrize("program", [BESIDE, FORK_IN_A_THREAD, WORKERS, EXEC])
def test_threads_and_children_inside_the_window_work(tmp_path, program):
    pair = bare_and_observed(tmp_path, program)
    assert pair.same, pair.observed
    assert pair.problems == []


@pytest.mark.parametrize("end", ENDS)
def test_a_child_forked_inside_the_window_ends_in_any_way(tmp_path, end):
    pair = bare_and_observed(tmp_path, FORK.format(at=6, end=end))
    assert pair.same, pair.observed
    assert pair.windows == ["window", "stacks"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        THREAD.format(steps=6),
        FORK.format(at=6, end="sys.exit(3)"),
        FORK.format(at=30, end="sys.exit(3)"),
    ],
    ids=["thread_ends_inside", "fork_inside", "fork_after"],
)
def test_a_whole_interpreter_ends_as_without_us(tmp_path, program):
    """Forks of the test's server leave without taking modules and libraries apart."""
    (tmp_path / "train.py").write_text(TRAINING + program)
    source = Path(__file__).parent.parent.parent / "src"
    environ = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    observe = ["-m", "stepscope.cli.main", "run", "--quiet", "--window-at", "5", "--out", "run"]
    bare, observed = (
        subprocess.run(
            [sys.executable, *words, "train.py"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=200,
        )
        for words in ([], observe)
    )
    assert (observed.returncode, observed.stdout) == (bare.returncode, bare.stdout)
    assert "Warning" not in observed.stderr
    assert "ERROR" not in observed.stderr
