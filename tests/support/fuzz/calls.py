"""Runs a command in this process, with little time and memory, and judges how it ended."""

import contextlib
import io
import resource
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stepscope.cli.main import main

LONGEST_S = 20
LARGEST = 1 << 30
"""Bytes a reader may take beyond what the process has."""
_LONGEST_LINE = 1100


class Late(BaseException):
    """Not caught by who handles errors: a hang is no bad file."""


def called(arguments: list[str], seconds: int = 3 * LONGEST_S) -> tuple[object, str, str]:
    """The exit code of a command and what it printed; an exception, a hang, too much memory and
    a warning of numpy's are raised."""
    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        warnings.catch_warnings(),
        limited(seconds, LARGEST),
    ):
        warnings.simplefilter("error", RuntimeWarning)
        try:
            main(arguments)
        except SystemExit as done:
            return done.code, *(one.buffer.getvalue().decode() for one in (out, errors))
    raise AssertionError("main returned")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    problem: str | None
    """None where it answered, or refused in a line."""
    code: object = None
    said: str = ""


def verdict(arguments: list[str], seconds: int = LONGEST_S) -> Ended:
    """Run a command and judge it."""
    try:
        code, printed, errors = called(arguments, seconds)
    except (Exception, Late) as problem:
        return Ended("".join(traceback.format_exception(problem)[-12:]))
    wrong = None
    if code not in (0, 2):
        wrong = f"exit code {code}"
    elif "Traceback" in printed + errors or "Warning" in errors:
        wrong = "a traceback or a warning"
    elif code == 2 and (
        not errors.startswith("stepscope: ")
        or len(errors.splitlines()) != 1
        or len(errors) > _LONGEST_LINE
    ):
        wrong = "not refused in a line"
    return Ended(f"{wrong}: {errors[-1500:]}" if wrong else None, code, errors)


@contextlib.contextmanager
def limited(seconds: int, size: int) -> Iterator[None]:
    """Raises where something takes longer or asks for more memory."""

    def late(*_: object) -> None:
        raise Late(f"not done after {seconds} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    old = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)
