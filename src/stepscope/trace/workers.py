"""Work shared among a few Python processes of our own, each with one job.

Plain child interpreters, neither forked nor spawned by `multiprocessing`: the program that calls
may have threads, or no main guard. They run our own functions and answer over a private pipe.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, TypeVar

from stepscope.record.errors import StepscopeError

A = TypeVar("A")
B = TypeVar("B")
_START = "from stepscope.trace.workers import serve; serve()"


def usable_cores() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_jobs(
    function: Callable[..., Iterable[A]],
    jobs: list[tuple[Any, ...]],
    fold: Callable[[Iterator[A]], B],
    processes: int,
) -> list[B | StepscopeError]:
    """`fold(function(*job))` for each job: the function runs elsewhere, fold here as results come.

    Where a job ends in an error of ours the error takes its place; any other is raised, OSError
    also where no process can be started.
    """
    from concurrent.futures import ThreadPoolExecutor  # imports logging

    with ThreadPoolExecutor(max(1, min(processes, len(jobs)))) as threads:
        return list(threads.map(lambda job: _one(function, job, fold), jobs))


def _one(
    function: Callable[..., Iterable[A]], job: tuple[Any, ...], fold: Callable[[Iterator[A]], B]
) -> B | StepscopeError:
    import subprocess

    places = os.pathsep.join(place or str(Path.cwd()) for place in sys.path)
    environment = {**os.environ, "PYTHONPATH": places}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _START],  # -P: nothing is imported from where we happen to be
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as child:
        try:
            assert child.stdin
            assert child.stdout
            pickle.dump((function, job), child.stdin)
            child.stdin.close()
            return fold(_answers(child.stdout))
        except StepscopeError as error:
            return error
        finally:
            child.kill()


def _answers(pipe: IO[bytes]) -> Iterator[Any]:
    """All answers until the end, which is an exception or None."""
    try:
        kind, value = pickle.load(pipe)
        while kind == "result":
            yield value
            kind, value = pickle.load(pipe)
    except (EOFError, pickle.UnpicklingError):
        value = StepscopeError("a reader process was killed (out of memory?)")
    if value is not None:
        raise value


def serve() -> None:
    """What a child does: read its job, answer, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends this process
    answer = sys.stdout.buffer
    sys.stdout = sys.stderr
    function, job = pickle.load(sys.stdin.buffer)
    end: Exception | None = None
    try:
        for result in function(*job):
            pickle.dump(("result", result), answer, protocol=5)
    except Exception as error:
        end = error
    pickle.dump(("end", end), answer, protocol=5)
    answer.flush()
