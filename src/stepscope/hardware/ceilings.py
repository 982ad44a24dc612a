"""The ceilings of this machine: measured in a child process, cached, and read back.

`python -m stepscope.hardware.ceilings --device cuda` prints one JSON line per measurement.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from stepscope.hardware.ceiling_cache import Ceiling, DeviceCeilings
from stepscope.hardware.gpus import driver_version, open_gpu
from stepscope.hardware.machine import describe_cpu, package_version
from stepscope.record.errors import MissingExtra, StepscopeError

BUDGET_S: Final = 0.5
_TIMEOUT_S: Final = 300.0


class Plan(Struct, frozen=True, tag="plan"):
    """What will be measured, and on which device."""

    names: list[str]
    device: str | None
    torch: str
    threads: int
    busy_percent: float


class Measured(Struct, frozen=True, tag="measured"):
    name: str
    result: Ceiling


class Failed(Struct, frozen=True, tag="failed"):
    name: str
    why: str


class _Error(Struct, frozen=True, tag="error"):
    text: str


Line = Plan | Measured | Failed
Listener = Callable[[Line], None]


def device_key(device: str, gpu_index: int | None = None) -> str:
    """The key of ceilings: device name, driver and torch; `gpu_index` is NVML's, for `cuda`."""
    torch = package_version("torch")
    if device == "cuda":
        gpu = open_gpu(gpu_index or 0)
        return f"{gpu.info().name if gpu else 'cuda'} | {driver_version()} | torch {torch}"
    cpu = describe_cpu()
    return f"{cpu.model or 'cpu'} x {cpu.usable_cores:g} | torch {torch}"


def measure_ceilings(
    device: str,
    key: str,
    listener: Listener | None = None,
    only: tuple[str, ...] = (),
    budget_s: float = BUDGET_S,
) -> DeviceCeilings:
    """Measure every ceiling of `device` ("cuda" or "cpu") in a child process, for the cache.
    `listener` is called with each line as it comes: the plan first, then one per measurement."""
    if package_version("torch") is None:
        raise MissingExtra("torch", "torch", "measuring ceilings")
    plan: Plan | None = None
    ceilings: dict[str, Ceiling] = {}
    failed: dict[str, str] = {}
    for line in _child_lines(device, only, budget_s):
        match line:
            case Plan():
                plan = line
            case Measured():
                ceilings[line.name] = line.result
            case Failed():
                failed[line.name] = line.why
            case _Error():
                raise StepscopeError(line.text)
        if listener:
            listener(line)
    if plan is None or not ceilings:
        reason = next(iter(failed.values()), "no output")
        raise StepscopeError(f"no ceiling could be measured: {reason}")
    return DeviceCeilings(
        key=key,
        device=plan.device,
        torch=plan.torch,
        threads=plan.threads,
        busy_percent=plan.busy_percent,
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        ceilings=ceilings,
        failed=failed,
    )


def _child_lines(device: str, only: tuple[str, ...], budget_s: float) -> Iterator[Line | _Error]:
    # -P: a torch.py in the current folder must not shadow the real one.
    command = [sys.executable, "-P", "-m", "stepscope.hardware.ceilings"]
    command += ["--device", device, "--budget-s", str(budget_s), *only]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        watchdog = threading.Timer(_TIMEOUT_S, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            for line in child.stdout:
                if line.startswith("{"):
                    yield msgspec.json.decode(line, type=Line | _Error)
            code = child.wait()
        finally:
            watchdog.cancel()
            child.kill()
        if code != 0:
            errors.seek(0)
            words = errors.read().strip().splitlines() or ["no output"]
            raise StepscopeError(f"the measuring process failed (exit code {code}): {words[-1]}")


def _print(line: Line | _Error) -> None:
    print(msgspec.json.encode(line).decode(), flush=True)


def main(arguments: list[str] | None = None) -> int:
    """The child: measure what was asked for and print each result at once."""
    parser = argparse.ArgumentParser(prog="stepscope.hardware.ceilings", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--budget-s", type=float, default=BUDGET_S, help="seconds per measurement")
    parser.add_argument("only", nargs="*", help="names of measurements; default: all")
    options = parser.parse_args(arguments)
    import psutil

    busy_percent = psutil.cpu_percent(0.2)  # before torch starts its own threads
    import torch

    from stepscope.hardware.ceiling_measurements import measurements_for

    if options.device == "cuda" and not torch.cuda.is_available():
        _print(_Error("torch does not see a CUDA device"))
        return 0
    measurements = measurements_for(options.device)
    names = [name for name in measurements if not options.only or name in options.only]
    name = torch.cuda.get_device_name() if options.device == "cuda" else describe_cpu().model
    _print(Plan(names, name, str(torch.__version__), torch.get_num_threads(), busy_percent))
    for name in names:
        try:
            _print(Measured(name, measurements[name](options.budget_s)))
        except RuntimeError as error:
            _print(Failed(name, str(error).splitlines()[0]))
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
