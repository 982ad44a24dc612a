"""Programs started by a process that has imported torch do what they do by themselves."""

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from stepscope.launch.child import run_child, watch_child
from stepscope.launch.fork_server import FORK_SERVER_AVAILABLE, ForkedProgram, ForkServer
from stepscope.launch.program import Program, child_environment
from stepscope.record.probe_options import ProbeOptions

pytestmark = pytest.mark.skipif(not FORK_SERVER_AVAILABLE, reason="forks of torch: Linux only")

TELLS = """
import json, os, sys
before = "torch" in sys.modules
import torch
def here(): pass
main = sys.modules["__main__"]
told = {
    "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(),
    "environ": {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"},
    "name": __name__, "file": __file__, "spec": __spec__ and __spec__.name,
    "here": main.here is here,
    "names": sorted(name for name in vars(main) if not name.startswith("_") and name != "told"),
    "random": torch.rand(3).tolist(), "stdin": sys.stdin.read(), "tty": sys.stdout.isatty(),
    "encoding": sys.stdout.encoding, "cuda": torch.cuda.is_initialized(),
}
print(json.dumps([before, told]))
"""
TRAINS = """
import torch
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
"""
SPAWNS = """
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index * index
if __name__ == "__main__":
    for x in DataLoader(Squares(), num_workers=1, multiprocessing_context="spawn"):
        print(int(x))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = ForkServer(os.environ, tmp_path_factory.mktemp("cwd"))
    assert made.ready
    yield made
    made.close()


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    """Runs a program, warm or by itself; its outcome, what it said, and its facts."""
    for name in {*os.environ} - {*server.environ}:
        monkeypatch.delenv(name)

    def run(source, *arguments, warm=True, module=False, timeout_s=60.0):
        (tmp_path / "made.py").write_text(source)
        program = Program("made" if module else "made.py", arguments, module)
        folder = tmp_path / f"run-{time.monotonic_ns()}"
        folder.mkdir()
        now = time.monotonic_ns()
        probe = ProbeOptions(folder=str(folder), launched_ns=now, seed=0).to_json()
        output, nothing = folder / "output.txt", lambda *_: None
        with open(output, "wb") as said:
            if warm:
                process = server.start(program, probe, said, tmp_path)
                ended = watch_child(process, 0, timeout_s, nothing, nothing, ours=True)
            else:
                environ = child_environment(probe)
                command = program.command
                ended = run_child(command, environ, timeout_s, nothing, nothing, said, tmp_path)
        facts = folder / "facts.jsonl"
        return ended, output.read_text(), facts.read_text() if facts.exists() else ""

    return run


@pytest.mark.parametrize("module", [False, True])
def test_a_warm_program_finds_the_same_surroundings(run, module):
    warm, told, _ = run(TELLS, "a", "--b=1", module=module)
    cold, expected, _ = run(TELLS, "a", "--b=1", module=module, warm=False)
    (early, ours), (late, theirs) = json.loads(told), json.loads(expected)
    assert (warm.exit_code, cold.exit_code) == (0, 0)
    assert (early, late) == (True, False)
    assert ours == theirs


def test_a_warm_program_does_not_wait_for_what_optimizers_import(run):
    source = "import sys; print({'torch', 'torch._dynamo', 'torch.optim'} <= set(sys.modules))"
    assert run(source)[1].strip() == "True"


def test_spawned_workers_find_a_warm_programs_classes(run):
    ended, told, _ = run(SPAWNS)
    assert (ended.exit_code, told.split()) == (0, ["0", "1", "4", "9"])


def test_steps_of_a_warm_program_are_observed(run):
    ended, _, facts = run(TRAINS)
    assert ended.exit_code == 0
    assert '"optimizer_made"' in facts


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('enough')", 1, "enough"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def (", 1, "SyntaxError"),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9, ""),
        ("import os; os.kill(os.getpid(), 2)", 128 + 2, "KeyboardInterrupt"),
        ("import atexit; atexit.register(print, 'at the end')", 0, "at the end"),
        (
            "import threading, time\n"
            "def late(): time.sleep(0.2); print('in a thread')\n"
            "threading.Thread(target=late).start()",
            0,
            "in a thread",
        ),
    ],
)
def test_it_ends_as_python_does(run, source, code, says):
    warm, told, _ = run(source)
    assert warm.exit_code == code
    assert says in told
    cold, _, _ = run(source, warm=False)
    assert cold.exit_code == code


def test_an_error_is_recorded_with_the_programs_own_traceback(run):
    _, told, facts = run(TRAINS + "raise MemoryError('no room')")
    assert '"MemoryError"' in facts
    assert "fork_server.py" not in told
    assert told == run(TRAINS + "raise MemoryError('no room')", warm=False)[1]


def test_one_that_hangs_is_ended(run):
    ended, _, _ = run("import time; time.sleep(600)", timeout_s=1.0)
    assert ended.timed_out
    again, told, _ = run("print('still served')")
    assert (again.exit_code, told.strip()) == (0, "still served")


def test_a_signal_from_the_terminal_is_for_the_program(run, server):
    os.kill(server._process.pid, signal.SIGINT)
    ended, told, _ = run("print('still served')")
    assert (ended.exit_code, told.strip()) == (0, "still served")


def test_started_programs_leave_no_descriptors_open(run, server):
    def opened():
        return [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), server._process.pid)]

    run(TRAINS)
    before = opened()
    for _ in range(20):
        run("pass")
        run("raise ValueError")
    run(TRAINS)
    assert opened() == before


def test_a_process_with_many_descriptors_hears_of_an_end():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("no more than that are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(600)]
        ours, theirs = pairs[-1]
        assert ours.fileno() > 1024
        program = ForkedProgram(os.getpid(), ours)
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(0.0)
        theirs.send(b"3")
        assert program.wait(60.0) == 3


def test_without_the_server_nothing_is_started(tmp_path):
    server = ForkServer(os.environ, tmp_path)
    server._process.kill()
    server._process.wait()
    with open(tmp_path / "out", "wb") as said:
        started = server.start(Program("x.py", (), False), "{}", said, tmp_path)
    server.close()
    assert started is None
    assert not server.ready


def test_a_server_that_cannot_import_torch_is_not_ready(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    server = ForkServer({**os.environ, "PYTHONPATH": path}, tmp_path)
    server.close()
    assert not server.ready


def test_programs_end_with_the_process_that_asked_for_them(tmp_path):
    (tmp_path / "long.py").write_text("import time; time.sleep(600)")
    script = tmp_path / "asks.py"
    script.write_text(
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from stepscope.launch.fork_server import ForkServer\n"
        "from stepscope.launch.program import Program\n"
        "server = ForkServer(os.environ, Path('/'))\n"
        "out = open(os.devnull, 'wb')\n"
        "started = server.start(Program('long.py', (), False), '{}', out, Path(sys.argv[1]))\n"
        "print(started.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    asking = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    number = int(asking.stdout.readline())
    asking.send_signal(signal.SIGKILL)
    asking.wait()
    asking.stdout.close()
    deadline = time.monotonic() + 200
    while _runs(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(number)


def _runs(number):
    try:
        with open(f"/proc/{number}/stat") as state:
            return state.read().split()[2] != "Z"
    except FileNotFoundError:
        return False
