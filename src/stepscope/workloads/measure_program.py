"""Running a workload program: its arguments, its errors, and what it has measured."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.workloads.arguments import Asked, parse
from stepscope.workloads.measure_memory import (
    is_out_of_memory,
    lift_limit,
    limit_memory,
    peak_memory,
)
from stepscope.workloads.measure_record import Measured

OUT_OF_MEMORY = 3
_LONGEST = 300


def execute(
    mode: str,
    about: str,
    body: Callable[[Asked, Measured], None],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a program's body; the exit code.

    0, 2 for bad input (told in one line), 3 where a measured program ran out of memory. All other
    exceptions go on, after what was measured until then has been written.
    """
    measured = Measured(mode)
    try:
        asked = parse(mode, about, argv)
        return _run(body, asked, measured)
    except StepscopeError as problem:
        print(f"{mode}: {problem}", file=sys.stderr)
        return problem.exit_code


def _run(body: Callable[[Asked, Measured], None], asked: Asked, measured: Measured) -> int:
    try:
        measured.device = begin(asked)
        body(asked, measured)
    except StepscopeError:
        raise
    except Exception as error:
        if asked.measure is None:
            raise
        lift_limit()
        full = is_out_of_memory(error)
        _write(asked, measured, _told(error, "out_of_memory" if full else "failed"))
        if not full:
            raise
        print(f"{measured.facts['mode']}: out of memory: {_first_line(error)}", file=sys.stderr)
        return OUT_OF_MEMORY
    if asked.measure is not None:
        _write(asked, measured, None)
    return 0


def begin(asked: Asked) -> Any:
    """The device to work on, with threads, limits and seeds set. Raises UsageError."""
    import torch

    cuda = torch.cuda.is_available()
    if asked.device == "cuda" and not cuda:
        raise UsageError("torch does not see a CUDA device: --device cpu")
    kind = ("cuda" if cuda else "cpu") if asked.device == "auto" else asked.device
    device = (
        torch.device("cuda", torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
    )
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    if asked.memory_limit_gib is not None:
        limit_memory(device, asked.memory_limit_gib)
    torch.manual_seed(asked.seed)
    return device


def _write(asked: Asked, measured: Measured, error: dict[str, str] | None) -> None:
    assert asked.measure is not None
    if measured.device is not None and measured.facts["peak_memory_bytes"] is None:
        try:
            measured.say(**peak_memory(measured.device))
        except RuntimeError:  # a device in trouble answers nothing more
            pass
    try:
        measured.write(asked.measure, error)
    except OSError as problem:
        raise UsageError(f"--measure {asked.measure}: {problem.strerror}") from None


def _told(error: BaseException, kind: str) -> dict[str, str]:
    return {
        "kind": kind,
        "text": f"{type(error).__name__}: {_first_line(error)}".removesuffix(": "),
    }


def _first_line(error: BaseException) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), "")[:_LONGEST]
