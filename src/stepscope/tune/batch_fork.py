"""A measurement in a forked process: what it allocates, changes or breaks ends with it."""

import json
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any, Final

Work = Callable[[], Any]

_CANARY_S: Final = 5.0
_LARGE: Final = 1 << 20  # elements: PyTorch computes on so many with several threads


class Died(Exception):  # noqa: N818
    """The forked process ended without an answer; `number` is the signal that ended it, or None."""

    def __init__(self, number: int | None) -> None:
        super().__init__(f"ended by signal {number}" if number else "ended without an answer")
        self.number = number


def can_fork() -> bool:
    """Whether a child forked from here can compute with PyTorch.

    Not where this process has used CUDA, and not where it computed with several threads before:
    GNU OpenMP then waits for ever in a child. That is tried out, by a child that is given a few
    seconds.
    """
    if not hasattr(os, "fork") or sys.platform != "linux":
        return False
    torch = sys.modules.get("torch")
    if torch is None:
        return True
    if torch.cuda.is_initialized():
        return False
    try:
        return bool(in_fork(_canary, _CANARY_S))
    except (Died, TimeoutError):
        return False


def _canary() -> bool:
    import torch

    numbers = torch.ones(_LARGE, requires_grad=True)
    numbers.exp().sum().backward()
    return True


def in_fork(work: Work, timeout_s: float | None = None) -> Any:
    """What `work` returns in a forked child, sent as JSON. Raises Died or TimeoutError."""
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # that threads are not forked is known here
        pid = os.fork()
    if pid == 0:
        os.close(reading)
        _answer(work, writing)
    os.close(writing)
    return _answered(pid, reading, timeout_s)


def _answer(work: Work, writing: int) -> None:
    """The child's whole life; never returns."""
    code = 1
    try:
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(work()))
        code = 0
    except BaseException:
        pass
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _answered(pid: int, reading: int, timeout_s: float | None) -> Any:
    ended = False
    try:
        with os.fdopen(reading) as pipe:
            ready, _, _ = select.select([pipe], [], [], timeout_s)
            if not ready:
                raise TimeoutError
            text = pipe.read()
        _, status = os.waitpid(pid, 0)
        ended = True
    finally:
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if not text:
        raise Died(os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)
    return json.loads(text)
