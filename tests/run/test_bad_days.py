"""However a program ends, the exit code is its own and the run is complete up to that moment."""

import gzip
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import warm

if TYPE_CHECKING:
    from conftest import Bench, Observed, Once


@dataclass(frozen=True)
class Case:
    """A way for `ending.py` to end after three steps."""

    way: str
    exit_code: int
    says: str  # what `show` says of it
    options: tuple[str, ...] = ()
    sends: signal.Signals | None = None  # sent to stepscope, not to the program
    forked: bool = True  # by a process that has imported torch


CASES = {
    "raises": Case("raise", 1, "raised ValueError: no fourth step"),
    "exits": Case("exit", 3, "exit code 3"),
    "exits-hard": Case("hard-exit", 5, "exit code 5"),
    "catches-interrupt": Case("catch", 9, "exit code 9", sends=signal.SIGINT, forked=False),
    "is-interrupted": Case("wait", 130, "signal 2", sends=signal.SIGINT, forked=False),
    "kills-itself": Case("kill", 137, "signal 9"),
    "hangs": Case("wait", 124, "--timeout", options=("--timeout", "0.5")),
    "out-of-memory": Case("out-of-memory", 1, "out of memory"),
    "memory-error": Case("memory-error", 1, "out of memory"),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def observed(name: str, once: "Once") -> "Observed":
    """The run of the case a test is parametrised with."""
    case = CASES[name]

    def make(bench: "Bench") -> "Observed":
        command, number = ("ending.py", case.way), case.sends
        signalled = None if number is None else lambda pid: os.kill(pid, number)
        if case.forked:
            from_ready = name == "hangs"
            return bench.run(*case.options, *command, forked=True, clock_from_ready=from_ready)
        return bench.run(*case.options, *command, when_ready=signalled)

    return once(f"ending-{name}", make)


@cases
def test_the_exit_code_is_the_programs_own(name: str, observed: "Observed") -> None:
    assert observed.ended.exit_code == CASES[name].exit_code, observed.ended.stderr
    assert observed.document["run"]["exit_code"] == CASES[name].exit_code


def printed(observed: "Observed") -> list[float]:
    """The losses that the program itself wrote."""
    lines = observed.ended.stdout.splitlines()
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]


@cases
def test_the_steps_so_far_are_counted(name: str, observed: "Observed") -> None:
    document = observed.document
    assert document["steps"]["count"] == 3
    assert document["losses"] == printed(observed)
    assert sum(document["phases_ms"].values()) == pytest.approx(document["steps"]["mean_ms"])
    assert document["problems"] == []


@cases
def test_show_says_how_it_ended(name: str, observed: "Observed") -> None:
    assert observed.shown.exit_code == 0, observed.shown.stderr
    assert "3 steps" in observed.shown.stdout
    assert CASES[name].says.lower() in observed.shown.stdout.lower()
    assert CASES[name].says.lower() in observed.ended.stderr.lower()


@cases
def test_nothing_half_written_is_left(name: str, observed: "Observed") -> None:
    left = [path.name for path in Path(observed.folder).rglob("*")]
    assert not [name for name in left if name.endswith(".part")]
    assert json.loads((Path(observed.folder) / "run.json").read_text())["run"]["exit_code"]


@cases
def test_stepscope_adds_no_traceback(name: str, observed: "Observed") -> None:
    wanted = 1 if name in ("raises", "is-interrupted", "out-of-memory", "memory-error") else 0
    assert observed.ended.stderr.count("Traceback (most recent call last)") == wanted


@pytest.mark.parametrize("name", ["raises"])
def test_the_traceback_is_the_programs_own(name: str, observed: "Observed") -> None:
    traceback = observed.ended.stderr.partition("\nstepscope  ")[0].rstrip()
    assert traceback.endswith("\nValueError: no fourth step")
    assert "in forward\n" in traceback
    assert os.path.join("src", "stepscope") + os.sep not in traceback


@pytest.mark.parametrize("name", ["catches-interrupt"])
def test_an_interrupt_reaches_the_program_once(name: str, observed: "Observed") -> None:
    assert observed.ended.stdout.splitlines()[-2:] == ["ready", "interrupted"]


@pytest.mark.parametrize("name", ["out-of-memory", "memory-error"])
def test_out_of_memory_is_named_with_its_largest_owners(name: str, observed: "Observed") -> None:
    assert observed.document["run"]["out_of_memory"]["device"] == "cpu"
    assert "Largest owners: parameters" in observed.shown.stdout


@pytest.mark.parametrize("name", ["hangs"])
def test_a_timeout_is_recorded_as_one(name: str, observed: "Observed") -> None:
    run = observed.document["run"]
    assert run["timed_out"] is True
    assert run["ended_ns"] - run["started_ns"] > 0.5e9


def test_a_program_killed_from_outside_gives_137(bench: "Bench") -> None:
    import psutil

    def kill(pid: int) -> None:
        (child,) = psutil.Process(pid).children()
        child.kill()

    run = bench.run("without_torch.py", "wait", when_ready=kill)
    assert run.ended.exit_code == 137
    assert run.document["run"]["signal"] == 9
    assert "signal 9" in run.shown.stdout


def test_sigterm_is_handed_on(bench: "Bench") -> None:
    run = bench.run("without_torch.py", "wait", when_ready=lambda pid: os.kill(pid, signal.SIGTERM))
    assert run.ended.exit_code == 143
    assert run.document["run"]["signal"] == 15
    assert "signal 15" in run.shown.stdout


def test_when_stepscope_is_killed_the_folder_is_still_readable(bench: "Bench") -> None:
    import psutil

    def kill(pid: int) -> None:
        left.extend(psutil.Process(pid).children())
        os.kill(pid, signal.SIGKILL)
        for child in left:
            child.kill()

    left: list[Any] = []
    run = bench.run("without_torch.py", "wait", when_ready=kill)
    assert run.document["run"]["exit_code"] is None
    assert run.document["run"]["under_way"] is False
    assert "Incomplete: stepscope was killed" in run.shown.stdout


def test_a_program_that_ignores_sigterm_is_ended_with_its_children(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.launch import child

    monkeypatch.setattr(child, "_GRACE_S", 0.2)
    pids = bench.folder / "pids"
    command = [sys.executable, str(bench.programs / "stubborn.py"), str(pids)]

    told = warm.clock_from(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    monkeypatch.setattr(child, "time", told)
    outcome = child.run_child(command, os.environ, 0.1, lambda pid: None, lambda: None)
    assert outcome.exit_code == 124
    assert outcome.timed_out
    stubborn = [int(pid) for pid in pids.read_text().split()]
    assert len(stubborn) == 2
    while any(_lives(pid) for pid in stubborn):  # a killed process takes a moment to go
        time.sleep(0.02)


def _lives(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_fault_beside_the_child_does_not_cost_the_child() -> None:
    from stepscope.launch.child import run_child

    def broken(*_: int) -> None:
        raise RuntimeError("can't start new thread")

    program = [sys.executable, "-c", "import time; time.sleep(0.3); raise SystemExit(3)"]
    assert run_child(program, os.environ, None, broken, broken).exit_code == 3


def test_no_steps_seen_is_said_in_one_line(once: "Once") -> None:
    run = once("nothing", lambda bench: bench.run("nothing.py", forked=True))
    assert run.ended.exit_code == 6
    assert run.ended.stdout == "torch 2.0\n"
    (problem,) = run.document["problems"]
    assert problem.startswith("no steps seen")
    assert "stepscope.step()" in problem
    assert run.shown.stdout.count("no steps seen") == 1
    assert run.ended.stderr.count("no steps seen") == 1
    assert run.document["steps"]["count"] == 0
    assert run.document["steps"]["mean_ms"] is None


def test_a_program_that_fails_before_its_first_step_is_told_why_and_nothing_else(
    once: "Once",
) -> None:
    run = once("early", lambda bench: bench.run("fails_early.py", forked=True))
    assert run.ended.exit_code == 1
    assert run.document["problems"] == []
    assert "Raised FileNotFoundError: no data in ./data." in run.shown.stdout
    assert "no steps seen" not in run.shown.stdout
    assert "Next:  stepscope run " in run.shown.stdout


def test_a_program_without_torch_runs_and_is_told_so(bench: "Bench") -> None:
    run = bench.run("without_torch.py", "8")
    assert run.ended.exit_code == 8
    assert run.ended.stdout == "no torch here\n"
    assert run.document["problems"] == ["no steps seen: the program did not import torch"]
    assert "did not import torch" in run.ended.stderr
    assert run.shown.exit_code == 0


def test_a_model_call_that_raises_is_no_step(once: "Once") -> None:
    run = once("inference", lambda bench: bench.run("failing_calls.py", forked=True))
    assert (run.ended.exit_code, run.ended.stdout) == (0, "returned 6 of 8\n")
    assert run.document["steps"]["count"] == 6


# A full disk


def no_file_beyond(nbytes: int) -> Callable[[], None]:
    """To be called in a new process: files there cannot grow past a size (EFBIG)."""
    limits = (nbytes, resource.RLIM_INFINITY)
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture(scope="module")
def limited(once: "Once") -> "Observed":
    """A run whose rows cannot grow past the first chunk, at which point a window is open."""
    options, limit = ("--window", "50", "--window-at", "2"), no_file_beyond(1_200_000)
    return once(
        "limited", lambda bench: bench.run(*options, "many_rows.py", window=True, before=limit)
    )


@pytest.mark.slow
def test_rows_that_cannot_grow_leave_the_program_as_it_is(
    limited: "Observed", bench: "Bench"
) -> None:
    plain = bench.python(str(bench.programs / "many_rows.py"))
    assert len(plain.stdout.splitlines()) == 6
    assert limited.ended.stdout == plain.stdout
    assert "Traceback" not in limited.ended.stderr
    assert limited.ended.exit_code == 4


@pytest.mark.slow
def test_rows_that_cannot_grow_are_said_in_one_line(limited: "Observed") -> None:
    (problem,) = limited.document["problems"]
    assert "recording stopped" in problem
    assert "\n" not in problem
    assert limited.ended.stderr.count("recording stopped") == 1
    assert limited.document["steps"]["count"] == 3


@pytest.mark.slow
def test_what_a_failed_window_leaves_is_whole(limited: "Observed") -> None:
    folder = Path(limited.folder)
    assert [path.name for path in folder.iterdir() if path.suffix in (".part", ".tmp")] == []
    for trace in folder.glob("*.pt.trace.json.gz"):
        assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


@pytest.fixture(scope="module")
def trace_too_large(once: "Once") -> "Observed":
    """A run whose rows fit on the disk, but the window's trace does not."""
    options, limit = ("--window", "5", "--window-at", "4"), no_file_beyond(900_000)
    return once(
        "trace", lambda bench: bench.run(*options, "long_window.py", window=True, before=limit)
    )


@pytest.mark.slow
def test_a_trace_that_does_not_fit_is_left_out_and_said(trace_too_large: "Observed") -> None:
    assert trace_too_large.ended.exit_code == 4
    folder = Path(trace_too_large.folder)
    assert [path.name for path in folder.iterdir() if path.suffix in (".part", ".tmp")] == []
    assert not (folder / "window.pt.trace.json.gz").exists()
    assert trace_too_large.document["steps"]["count"] == 10
    (problem,) = trace_too_large.document["problems"]
    assert "kernel trace" in problem
    assert "window.pt.trace.json.gz" not in trace_too_large.shown.stdout


@pytest.mark.slow
def test_a_probe_that_cannot_write_at_all_leaves_the_program_as_it_is(bench: "Bench") -> None:
    program = str(bench.programs / "many_rows.py")
    plain = warm.execute([sys.executable, program], bench.folder, os.environ)
    run = bench.run(program, before=no_file_beyond(100_000))
    assert (run.ended.exit_code, run.ended.stdout) == (4, plain.stdout)
    assert len(run.ended.own_lines) == 1
    assert "File too large" in run.ended.own_lines[0]
    assert "Traceback" not in run.ended.stderr
    assert run.shown.exit_code == 0
    assert run.document["steps"]["count"] == 0
    assert not any("did not import torch" in problem for problem in run.document["problems"])


def run_on_small_disk(bench: "Bench", size: str, program: str) -> "Observed":
    """A run into a file system of that size; `{disk}` in `program` stands for its path."""
    if not _may_mount():
        pytest.skip("no file system may be mounted here")
    disk, kept = bench.folder / "disk", bench.folder / "kept"
    disk.mkdir()
    stepscope = f"{sys.executable} -m stepscope.cli.main"
    ended = bench.shell(f"""
        mount -t tmpfs -o size={size} none {disk}
        {stepscope} run --no-window --out {disk}/run {bench.programs}/{program.format(disk=disk)}
        code=$?
        cp -r {disk}/run {kept}
        exit $code
    """)
    return bench.shown(ended, kept)


def _may_mount() -> bool:
    tools = shutil.which("unshare") and shutil.which("mount")
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return bool(tools) and not subprocess.run(command, capture_output=True).returncode


@pytest.fixture(scope="module")
def on_full_disk(once: "Once") -> "Observed":
    """A run into a small file system that the program itself fills."""
    return once(
        "on-full-disk", lambda bench: run_on_small_disk(bench, "4m", "fills_disk.py {disk}")
    )


def test_a_full_disk_changes_nothing_for_the_program(on_full_disk: "Observed") -> None:
    lines = on_full_disk.ended.stdout.splitlines()
    assert on_full_disk.ended.exit_code == 4, on_full_disk.ended.stderr
    assert lines.count("ENOSPC") == 3
    assert len(lines) == 9


def test_a_full_disk_is_said_in_one_line(on_full_disk: "Observed") -> None:
    stderr = on_full_disk.ended.stderr
    assert "Traceback" not in stderr
    assert stderr.count("No space left on device") == 1


def test_a_run_on_a_full_disk_is_readable(on_full_disk: "Observed") -> None:
    assert on_full_disk.document["steps"]["count"] >= 3
    assert "steps" in on_full_disk.shown.stdout
    assert not list(Path(on_full_disk.folder).glob("*.part"))


def test_a_disk_too_full_to_finish_the_run_leaves_the_exit_code(bench: "Bench") -> None:
    run = run_on_small_disk(bench, "64k", "without_torch.py fill {disk}")
    full = "No space left on device\n"
    assert run.ended.stdout == full + full + "no torch here\n"
    assert run.ended.exit_code == 4, run.ended.stderr
    assert "Traceback" not in run.ended.stderr
    assert run.ended.stderr.count("No space left on device") == 1
    assert not list(Path(run.folder).glob("*.part"))
    assert run.shown.exit_code == 0, run.shown.stderr
