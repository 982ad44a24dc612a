"""Runs a workload program: its device, memory limit and errors, and its results file, written
atomically.
"""

import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.json import decode, encode

from stepscope.hardware.processor import read_text
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.problems import is_out_of_memory
from stepscope.store.json_file import write_json
from stepscope.workloads.arguments import ProgramArguments, parse_arguments
from stepscope.workloads.measure.record import MEASURED, Measured, ModelMeasured, ProgramError

_STATUS = Path("/proc/self/status")


def _limit_memory(device: Any, gib: float) -> None:
    """From now on, allocations beyond this many GiB on the device fail with out of memory. On the
    CPU, what counts is memory this process has written to or allocates from now on."""
    most = int(gib * 2**30)
    if device.type == "cuda":
        import torch

        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), device)
        return
    reserved = max(0, _status("VmData") - _status("RssAnon"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most + reserved, hard))


def peak_memory(device: Any) -> tuple[int, int | None]:
    """Peak bytes in use since the program began, and peak bytes reserved (CUDA only)."""
    if device.type == "cuda":
        import torch

        held = torch.cuda.max_memory_allocated(device)
        return int(held), int(torch.cuda.max_memory_reserved(device))
    # getrusage includes the peak of the parent process.
    peak = _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return peak, None


def reset_peak_memory() -> None:
    """Reset the host's peak to the current use."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    found = re.search(rf"^{field}:\s*(\d+)", read_text(_STATUS), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


OUT_OF_MEMORY = 3
_LONGEST = 300
M = TypeVar("M", bound=Measured)


def _error_line(error: BaseException) -> str:
    """`ValueError: the first line of its message`."""
    return f"{type(error).__name__}: {_first_line(error)}".removesuffix(": ")


def run_program(
    mode: str,
    about: str,
    body: Callable[[ProgramArguments, M, Any], None],
    argv: Sequence[str] | None = None,
    error_line: Callable[[BaseException], str] = _error_line,
) -> int:
    """Run `body(arguments, measured, device)`; returns the exit code: 0, 2 for bad input (in one
    line), 3 if a measured program ran out of memory. Other exceptions propagate after partial
    results are written."""
    measured: Any = MEASURED[mode]()
    try:
        asked = parse_arguments(mode, about, argv)
        device = None
        try:
            device = prepare_device(asked)
            body(asked, measured, device)
        except StepscopeError:
            raise
        except Exception as error:
            if asked.measure is None:
                raise
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))  # free memory for the rest
            full = is_out_of_memory(type(error).__name__, str(error), limited=True)
            measured.error = ProgramError("out_of_memory" if full else "failed", error_line(error))
            _write(asked.measure, measured, device)
            if not full:
                raise
            print(f"{mode}: out of memory: {_first_line(error)}", file=sys.stderr)
            return OUT_OF_MEMORY
        if asked.measure is not None:
            _write(asked.measure, measured, device)
        return 0
    except StepscopeError as problem:
        print(f"{mode}: {problem}", file=sys.stderr)
        return problem.exit_code


def prepare_device(asked: ProgramArguments) -> Any:
    """The device to work on, with threads, limits and seeds set. Raises UsageError."""
    import torch

    cuda = torch.cuda.is_available()
    if asked.device == "cuda" and not cuda:
        raise UsageError("torch sees no CUDA device; use --device cpu")
    on_cuda = asked.device == "cuda" or (asked.device == "auto" and cuda)
    device = torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")
    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    if asked.memory_limit_gib is not None:
        _limit_memory(device, asked.memory_limit_gib)
    torch.manual_seed(asked.seed)
    return device


def _write(path: Path, measured: Measured, device: Any) -> None:
    if isinstance(measured, ModelMeasured) and measured.peak_memory_bytes is None and device:
        try:
            measured.peak_memory_bytes, measured.reserved_memory_bytes = peak_memory(device)
        except RuntimeError:  # a failed device no longer responds
            pass
    try:
        write_json(path, decode(encode(measured)), indent=None)
    except OSError as problem:
        raise UsageError(f"--measure {path}: {problem.strerror}") from None


def _first_line(error: BaseException) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), "")[:_LONGEST]
