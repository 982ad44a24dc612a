"""The ceilings of this machine: measured in a child process, cached, and read back.

`python -m stepscope.hardware.ceilings --device cuda` prints one JSON line per measurement.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from stepscope.hardware.ceiling_cache import CEILINGS_SCHEMA
from stepscope.hardware.gpus import driver_version, open_gpu
from stepscope.hardware.machine import describe_cpu, package_version
from stepscope.record.errors import MissingExtra, StepscopeError

BUDGET_S: Final = 0.5
_TIMEOUT_S: Final = 300.0

Listener = Callable[[dict[str, Any]], None]


def device_key(device: str, gpu_index: int | None = None) -> str:
    """What ceilings belong to: device name, driver and torch; `gpu_index` is NVML's, for `cuda`."""
    torch = package_version("torch")
    if device == "cuda":
        gpu = open_gpu(gpu_index or 0)
        return f"{gpu.facts()['name'] if gpu else 'cuda'} | {driver_version()} | torch {torch}"
    cpu = describe_cpu()
    return f"{cpu['model'] or 'cpu'} x {cpu['usable_cores']:g} | torch {torch}"


def measure_ceilings(
    device: str,
    key: str,
    listener: Listener | None = None,
    only: tuple[str, ...] = (),
    budget_s: float = BUDGET_S,
) -> dict[str, Any]:
    """Measure every ceiling of `device` ("cuda" or "cpu") in a child process, for the cache.

    `listener` hears each line as it comes: first the `plan`, then what was `measured` or `failed`.
    """
    if package_version("torch") is None:
        raise MissingExtra("torch", "torch", "measuring ceilings")
    ceilings: dict[str, Any] = {}
    failed: dict[str, str] = {}
    facts: dict[str, Any] = {}
    for line in _child_lines(device, only, budget_s):
        if "measured" in line:
            ceilings[line["measured"]] = line["result"]
        elif "failed" in line:
            failed[line["failed"]] = line["why"]
        elif "error" in line:
            raise StepscopeError(line["error"])
        else:
            facts = line["facts"]
        if listener:
            listener(line)
    if not ceilings:
        raise StepscopeError(
            f"no ceiling could be measured: {next(iter(failed.values()), 'no output')}"
        )
    return {
        "schema": CEILINGS_SCHEMA,
        "key": key,
        **facts,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "ceilings": ceilings,
        "failed": failed,
    }


def _child_lines(device: str, only: tuple[str, ...], budget_s: float) -> Iterator[dict[str, Any]]:
    # -P: a file named torch.py in the current folder must not stand in for the real one.
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
                    yield json.loads(line)
            code = child.wait()
        finally:
            watchdog.cancel()
            child.kill()
        if code != 0:
            errors.seek(0)
            words = errors.read().strip().splitlines() or ["no output"]
            raise StepscopeError(f"the measuring process failed (exit code {code}): {words[-1]}")


def _tell(**line: Any) -> None:
    print(json.dumps(line), flush=True)


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
        _tell(error="torch does not see a CUDA device")
        return 0
    measurements = measurements_for(options.device)
    names = [name for name in measurements if not options.only or name in options.only]
    name = torch.cuda.get_device_name() if options.device == "cuda" else describe_cpu()["model"]
    facts = {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads()}
    _tell(plan=names, facts={**facts, "busy_percent": busy_percent})
    for name in names:
        try:
            _tell(measured=name, result=measurements[name](options.budget_s).to_json())
        except RuntimeError as error:
            _tell(failed=name, why=str(error).splitlines()[0])
        if options.device == "cuda":
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
