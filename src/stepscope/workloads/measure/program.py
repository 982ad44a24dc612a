"""Running a workload program: its device, memory limit and errors, and the record of what it
measured, one JSON object written whole or not at all.
"""

import resource
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.out_of_memory import is_out_of_memory
from stepscope.store.json_file import write_json
from stepscope.workloads.arguments import ProgramArguments, parse_arguments

_STATUS = Path("/proc/self/status")


def _limit_memory(device: Any, gib: float) -> None:
    """From now on more than this many GiB on the device are answered with out of memory.

    On the CPU what counts is memory this process has written to or asks for from now on.
    """
    most = int(gib * 2**30)
    if device.type == "cuda":
        import torch

        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, most / total), device)
        return
    reserved = max(0, _status("VmData") - _status("RssAnon"))
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most + reserved, hard))


def _lift_memory_limit() -> None:
    """Give memory back to what is still to be done on the host."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def peak_memory(device: Any) -> dict[str, int | None]:
    """Most bytes held at a time since the program began, and reserved for it (CUDA only)."""
    if device.type == "cuda":
        import torch

        return {
            "peak_memory_bytes": int(torch.cuda.max_memory_allocated(device)),
            "reserved_memory_bytes": int(torch.cuda.max_memory_reserved(device)),
        }
    # What getrusage says of a process begins with the peak of the one that started it.
    peak = _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_memory_bytes": peak, "reserved_memory_bytes": None}


def reset_peak_memory() -> None:
    """Let the host's peak begin anew at what is held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _status(field: str) -> int:
    """A field of /proc/self/status in bytes; 0 where there is none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return 0
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


SCHEMA = "stepscope.measured/1"
_KEYS = (
    *("model", "mode", "batch", "device", "device_name", "torch", "parameters"),
    *("flops_per_sample", "flops_why_not", "arithmetic", "clock", "tokens_per_sample"),
    *("warmup", "first_calls_extra_s", "started_ns", "ended_ns", "elapsed_s", "calls", "samples"),
    *("series_ms", "peak_memory_bytes", "reserved_memory_bytes"),
)
_OF_MODE = {
    "train": (
        *("losses", "scores", "score_name", "final_loss", "final_score"),
        *("steps", "train_samples", "time_to_score_s"),
    ),
    "infer": ("throughput_ms",),
    "generate": ("prompt", "new_tokens", "first_token_ms", "token_ms", "tokens_per_s"),
}


class MeasureNote(StrEnum):
    """What the numbers need to be read with, as it is shown."""

    WARMUP_UNSETTLED = "warm-up did not settle"
    SCORED_DURING_TRAINING = (
        "scored during training: step times exclude it, energy and GPU use include it"
    )


class MeasuredRecord:
    """Facts as they become known; None until then."""

    def __init__(self, mode: str) -> None:
        keys = (*_KEYS, *_OF_MODE[mode])
        self.facts: dict[str, Any] = {"schema": SCHEMA, **dict.fromkeys(keys)}
        self.facts["mode"] = mode
        self.notes: list[MeasureNote] = []
        self.device: Any = None
        """The torch.device in use, once it is chosen."""

    def update(self, **facts: Any) -> None:
        """Facts under their names in the record. Raises KeyError for others."""
        unknown = facts.keys() - self.facts.keys()
        if unknown:
            raise KeyError(f"a measured record has no {', '.join(sorted(unknown))}")
        self.facts.update(facts)

    def write(self, path: Path, error: dict[str, str] | None) -> None:
        """Write it; `error` is what ended the program too soon."""
        document = _plain({**self.facts, "notes": self.notes, "error": error})
        write_json(path, document, indent=None, allow_nan=False)


def _plain(value: Any) -> Any:
    """A value without numbers that JSON does not have."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


OUT_OF_MEMORY = 3
_LONGEST = 300


def run_program(
    mode: str,
    about: str,
    body: Callable[[ProgramArguments, MeasuredRecord], None],
    argv: Sequence[str] | None = None,
) -> int:
    """Run a program's body; the exit code.

    0, 2 for bad input (told in one line), 3 where a measured program ran out of memory. All other
    exceptions go on, after what was measured until then has been written.
    """
    measured = MeasuredRecord(mode)
    try:
        asked = parse_arguments(mode, about, argv)
        return _run(body, asked, measured)
    except StepscopeError as problem:
        print(f"{mode}: {problem}", file=sys.stderr)
        return problem.exit_code


def _run(
    body: Callable[[ProgramArguments, MeasuredRecord], None],
    asked: ProgramArguments,
    measured: MeasuredRecord,
) -> int:
    try:
        measured.device = prepare_device(asked)
        body(asked, measured)
    except StepscopeError:
        raise
    except Exception as error:
        if asked.measure is None:
            raise
        _lift_memory_limit()
        full = is_out_of_memory(type(error).__name__, str(error), limited=True)
        _write(asked, measured, _error_record(error, "out_of_memory" if full else "failed"))
        if not full:
            raise
        print(f"{measured.facts['mode']}: out of memory: {_first_line(error)}", file=sys.stderr)
        return OUT_OF_MEMORY
    if asked.measure is not None:
        _write(asked, measured, None)
    return 0


def prepare_device(asked: ProgramArguments) -> Any:
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
        _limit_memory(device, asked.memory_limit_gib)
    torch.manual_seed(asked.seed)
    return device


def _write(asked: ProgramArguments, measured: MeasuredRecord, error: dict[str, str] | None) -> None:
    assert asked.measure is not None
    if measured.device is not None and measured.facts["peak_memory_bytes"] is None:
        try:
            measured.update(**peak_memory(measured.device))
        except RuntimeError:  # a device in trouble answers nothing more
            pass
    try:
        measured.write(asked.measure, error)
    except OSError as problem:
        raise UsageError(f"--measure {asked.measure}: {problem.strerror}") from None


def _error_record(error: BaseException, kind: str) -> dict[str, str]:
    return {
        "kind": kind,
        "text": f"{type(error).__name__}: {_first_line(error)}".removesuffix(": "),
    }


def _first_line(error: BaseException) -> str:
    return next(filter(None, map(str.strip, str(error).splitlines())), "")[:_LONGEST]
