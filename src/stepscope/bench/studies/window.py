"""A few steps of a point recorded by the profiler, in a process of its own."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.bench.point import Point
from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import Timeline

Recorder = Callable[[Point, Path, float | None], "Timeline | str"]

_STEPS, _FIRST, _RECORDED = 14, 8, 4


def recorded(point: Point, folder: Path, timeout_s: float | None) -> Timeline | str:
    """The timeline of four steps after a short warm-up; where there is none, why."""
    from stepscope.fixes import catalogue
    from stepscope.launch.child import run_child
    from stepscope.launch.program import Program, environment
    from stepscope.record.options import ProbeOptions
    from stepscope.trace.kineto import read_kineto

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    trace = folder / "window.pt.trace.json"
    options = ProbeOptions(
        folder=str(folder.absolute()),
        launched_ns=time.monotonic_ns(),
        window=_RECORDED,
        window_at=_FIRST,
        stacks=0,
        fixes=point.fixes,
    )
    module, *arguments = short(point).command(folder / "measured.json")
    variables = catalogue.environment(catalogue.parse(point.fixes))
    with open(folder / "output.txt", "wb") as output:
        outcome = run_child(
            Program(module, tuple(arguments), module=True).command,
            environment(options.to_json(), variables),
            timeout_s,
            lambda pid: None,
            lambda: None,
            output,
        )
    if outcome.told is not None:
        raise KeyboardInterrupt
    if not trace.is_file():
        return f"no steps were recorded (exit code {outcome.exit_code})"
    try:
        return read_kineto(trace, processes=1)
    except StepscopeError as problem:
        return str(problem)


def short(point: Point) -> Point:
    """The same for a few steps, on samples that are on the device already where that can be:
    what a loader does is not what operators do."""
    settings: dict[str, Any] = dict(point.settings)
    for name in ("epochs", "seconds", "target_score"):
        settings.pop(name, None)
    settings["steps"] = _STEPS
    if settings.get("data", "synthetic") == "synthetic":
        settings["data"] = "resident"
        settings["samples"] = 4 * point.batch
    settings["test_samples"] = min(point.batch, settings.get("test_samples", point.batch))
    return Point.of(point.model, point.mode, point.batch, point.device, point.fixes, **settings)
