"""Measures one point once, in its own process, with its fixes in place."""

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from msgspec.json import decode

from stepscope.bench.grid import Point
from stepscope.bench.machine import Gauges, machine_during
from stepscope.bench.record import MachineUse, ProcessRecord, fix_reports
from stepscope.bench.results import FixReport, PointStatus
from stepscope.launch.child import Outcome, run_child
from stepscope.launch.program import Program, child_environment
from stepscope.measure.trial.folder import OUTPUT_FILE, last_output_line, tidy_output
from stepscope.record.fix import fix_outcomes
from stepscope.record.probe_options import ProbeOptions
from stepscope.record.problems import says_out_of_memory
from stepscope.store.table import read_table
from stepscope.workloads.measure.record import AnyMeasured, ModelMeasured


def environment_with(
    fixes: Sequence[str], folder: Path, window: int = 0, window_at: int | None = None
) -> dict[str, str]:
    """Its environment: the probe is included only for fixes, or to record a window from step
    `window_at` on, and writes to `folder`."""
    from stepscope.fixes import registry

    if not fixes and not window:
        return dict(os.environ)
    options = ProbeOptions(
        str(folder.absolute()),
        time.monotonic_ns(),
        window=window,
        window_at=window_at,
        stacks=0,
        clocks=window > 0,
        fixes=tuple(fixes),
        check_fixes=False,
    )
    return child_environment(options.to_json(), registry.fix_variables(registry.parse_fixes(fixes)))


def run_logged(
    command: Sequence[str],
    environ: Mapping[str, str],
    timeout_s: float | None,
    log: Path,
    begin: Callable[[int], None] = lambda pid: None,
    tick: Callable[[], None] = lambda: None,
) -> Outcome:
    """Run a program, its output in a file. Raises KeyboardInterrupt on a signal to stop."""
    with open(log, "wb") as output:
        outcome = run_child(command, environ, timeout_s, begin, tick, output)
    tidy_output(log)
    if outcome.end_signal is not None:
        raise KeyboardInterrupt
    return outcome


MEASURED = "measured.json"
USAGE_EXIT_CODE = 2  # exit code of a program that rejects its arguments
_ITS_NAME = re.compile(r"^\w+: ")
_SHAPE = ("size", "classes", "length", "prompt", "new_tokens")
_flops: dict[tuple[Any, ...], float] = {}
"""Operations per sample by model, mode and shape, cached because counting takes a process
seconds."""


def measure(point: Point, folder: Path, timeout_s: float | None) -> ProcessRecord:
    """Run one process and return its record; `folder` is its own and recreated. Never raises for
    how the process ends; KeyboardInterrupt on a termination signal."""
    from stepscope.hardware.gpus import visible_gpu_index
    from stepscope.launch.observed_run import kernel_oom_kills
    from stepscope.launch.sampling import MachineSampler
    from stepscope.store.json_lines import read_facts

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    gauges = Gauges()
    kills = kernel_oom_kills()
    work = (point.model, point.mode, *map(point.settings.get, _SHAPE))
    module, *arguments = point.command(folder / MEASURED)
    if work in _flops:
        arguments += ["--flops", repr(_flops[work])]
    command = Program(module, tuple(arguments), module=True).command
    environ = environment_with(point.fixes, folder)
    with ExitStack() as beside:

        def begin(pid: int) -> None:
            gpu = visible_gpu_index(os.environ) if point.device == "cuda" else None
            sampler = MachineSampler(pid, folder / "samples.npy", gpu)
            beside.callback(sampler.stop)
            sampler.start()
            gauges.read()

        outcome = run_logged(command, environ, timeout_s, folder / OUTPUT_FILE, begin, gauges.read)
    measured: AnyMeasured | None = None
    with suppress(
        OSError, ValueError
    ):  # it wrote nothing complete; msgspec's errors are ValueErrors
        measured = decode((folder / MEASURED).read_bytes(), type=AnyMeasured)
    if isinstance(measured, ModelMeasured) and measured.flops_per_sample:
        _flops[work] = measured.flops_per_sample
    facts = read_facts(folder / "facts.jsonl")
    fixes = fix_reports(fix_outcomes(facts.fixes, point.fixes))
    killed = outcome.signal == 9 and kernel_oom_kills() > kills
    status, why = process_status(outcome, measured, fixes, killed, last_output_line(folder))
    machine = MachineUse()
    if measured and measured.started_ns is not None and measured.ended_ns is not None:
        section = measured.started_ns, measured.ended_ns
        samples = read_table(folder / "samples.npy")
        machine = machine_during(samples, gauges, point.device, *section)
    return ProcessRecord(
        key=point.key(),
        point=point,
        status=status,
        why=why,
        fixes=fixes,
        measured=measured,
        machine=machine,
        seconds=(outcome.ended_ns - outcome.started_ns) / 1e9,
        exit_code=outcome.exit_code,
    )


def process_status(
    outcome: Outcome,
    measured: AnyMeasured | None,
    fixes: Sequence[FixReport],
    killed: bool,
    said: str,
) -> tuple[PointStatus, str | None]:
    """How a process ended, and why if it failed. `killed`: by the kernel, for memory."""
    broken = next((f"{fix.name}: {fix.reasons[-1]}" for fix in fixes if fix.state == "broke"), None)
    if outcome.timed_out:
        seconds = (outcome.ended_ns - outcome.started_ns) / 1e9
        return PointStatus.TIMED_OUT, f"ended after {seconds:.0f} s: --timeout gives it more"
    if killed:
        return PointStatus.OUT_OF_MEMORY, "killed by the kernel: the machine ran out of memory"
    if measured is not None and measured.error is not None:
        return PointStatus(measured.error.kind), broken or measured.error.text
    if outcome.exit_code == 0 and measured is not None:
        return PointStatus.OK, None
    if says_out_of_memory(said):
        return PointStatus.OUT_OF_MEMORY, said
    if outcome.signal is not None:
        return PointStatus.FAILED, f"ended by signal {outcome.signal}: {said}".removesuffix(": ")
    said = said or f"exit code {outcome.exit_code} and nothing measured"
    if outcome.exit_code == USAGE_EXIT_CODE:
        said = _ITS_NAME.sub("", said)
    return PointStatus.FAILED, broken or said
