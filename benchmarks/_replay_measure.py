"""One program's window replayed against its unprofiled steps."""

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

_BLOCKS = 10  # of bare steps; every other one calibrates, the others test


def measured(folder: Path) -> dict[str, Any]:
    """The replay of a run folder's window, and of lesser models, beside its bare step."""
    from stepscope.analyze.replay import changes
    from stepscope.analyze.replay.calibration import calibration_of_run
    from stepscope.analyze.replay.model import build_model, model_of_run
    from stepscope.analyze.run.records import RunRecords
    from stepscope.analyze.timeline.steps import find_steps

    records = RunRecords(folder)
    timeline, clocks = records.timeline, calibration_of_run(records)
    if timeline is None:
        raise RuntimeError("no window")
    begun = time.perf_counter()
    model = model_of_run(records)
    built = time.perf_counter() - begun
    steps = find_steps(timeline).steps
    plain = build_model(timeline, steps)
    if model is None or clocks is None or plain is None:
        raise RuntimeError("no window, or no steps outside it")
    begun = time.perf_counter()
    found = model.replay()
    spent = time.perf_counter() - begun
    bare = clocks.step_ms
    tasks = model.tasks
    no_edges = model.replay(changes.drop_waits(), changes.scale_phase("data_wait", 0.0))
    return {
        "steps": clocks.steps,
        "window_steps": tasks.steps,
        "bare_ms": bare,
        "recorded_ms": (steps[-1].end_ns - steps[0].start_ns) / len(steps) / 1e6,
        "replay_ms": found.step_ms,
        "off": found.step_ms / bare - 1,
        "stated_error": model.error,
        "held_out": held_out(records),
        "uncalibrated_off": plain.step_ms / bare - 1,
        "without_edges_off": no_edges.step_ms / bare - 1,
        "limited_by": found.limited_by,
        "host_ms": found.host_ms,
        "device_ms": found.device_ms,
        "loader_ms": found.loader_ms,
        "factors": dict(clocks.factors),
        "events": len(timeline.host) + len(timeline.device),
        "build_s": built,
        "replay_s": spent,
    }


def held_out(records: Any) -> dict[str, float]:
    """Calibrated by every other block of bare steps, tested on the blocks between.

    `between` is how far those two halves lie apart by themselves.
    """
    from stepscope.analyze.replay.calibration import calibration_of_run
    from stepscope.analyze.replay.model import model_of_run

    halves = [calibration_of_run(records, partial(_half, n)) for n in (0, 1)]
    offs, between = [], []
    for own, other in (halves, halves[::-1]):
        if own is None or other is None:
            continue
        model = model_of_run(records, own)
        if model is not None:
            offs.append(model.step_ms / other.step_ms - 1)
            between.append(own.step_ms / other.step_ms - 1)
    return {
        "off": median(map(abs, offs)) if offs else float("nan"),
        "between": median(map(abs, between)) if between else float("nan"),
    }


def _half(which: int, count: int) -> Any:
    return np.arange(count) * _BLOCKS // max(count, 1) % 2 == which
