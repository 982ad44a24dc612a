"""The model of a run folder: its window, its clocks and its loader put together."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.analyze.pipeline import PipelineSource, read_pipeline
from stepscope.analyze.timeline.steps import find_steps
from stepscope.analyze.whatif.calibrate import Calibration, read_calibration
from stepscope.analyze.whatif.model import Model, build
from stepscope.analyze.whatif.priors import MOST_HAND_OVER_MS
from stepscope.analyze.whatif.tasks import Loader
from stepscope.record.errors import StepscopeError
from stepscope.record.timeline import Timeline
from stepscope.store.facts import read_facts
from stepscope.store.folder import read_run
from stepscope.trace.kineto import read_kineto

_WORKS = 0.7  # of making a batch: the rest is then rather waiting for a core that others have


def model_of_run(
    folder: Path, timeline: Timeline | None = None, calibrated: Calibration | None = None
) -> Model | None:
    """None where no window was recorded, or it cannot be read.

    `timeline` is the window's, where it is at hand already; `calibrated` the run's own calibration
    unless given.
    """
    if timeline is None:
        try:
            timeline = read_kineto(folder / "window.pt.trace.json.gz", processes=1)
        except StepscopeError:
            return None
    run = read_run(folder)
    calibrated = calibrated or read_calibration(folder, run)
    facts = read_facts(folder / "facts.jsonl")
    steps = find_steps(timeline).steps
    model = build(timeline, steps, calibrated)
    if model is None or calibrated is None or not len(model.tasks.fetches):
        return model
    batches = len(model.tasks.fetches) / model.tasks.steps
    loader = run_loader(facts, read_pipeline(folder), run, calibrated, batches)
    return model if loader is None else model.fed_by(loader)


def model_of_trace(timeline: Timeline) -> Model | None:
    """The model of a recording alone: of the recorded step, not of the bare one."""
    return build(timeline, find_steps(timeline).steps)


def run_loader(
    facts: Mapping[str, list[dict[str, Any]]],
    sources: list[PipelineSource],
    run: Mapping[str, Any],
    clocks: Calibration,
    batches: float,
) -> Loader | None:
    """The run's busiest loader; None where it has none. `batches` is how many a step takes."""
    if not facts["loader"] or batches <= 0:
        return None
    workers = max(int(fact["num_workers"] or 0) for fact in facts["loader"])
    ahead = max(int(fact["prefetch_factor"] or 2) for fact in facts["loader"])
    waited = clocks.bare_ms["data_wait"] / batches
    cores = float(run.get("machine", {}).get("cpu", {}).get("usable_cores") or 1)
    loader = Loader(
        waited,
        workers,
        cores,
        _host_cores(facts, cores),
        ahead,
        processor=_processor(sources),
        batch_mb=max((fact["bytes"] for fact in facts.get("batch", ())), default=0) / 1e6,
        measured=workers,
    )
    if not workers:
        return loader
    ready = min(clocks.data_wait_low_ms / batches, waited, MOST_HAND_OVER_MS)
    made = sources[0].ms_per_batch if sources else 0.0
    host = sum(ms for phase, ms in clocks.bare_ms.items() if phase != "data_wait") / batches
    behind = max(0.0, made / workers - host - ready)  # what the workers' pace explains
    late = max(0.0, waited - ready - behind)
    return replace(loader, batch_ms=made, hand_over_ms=ready, late_ms=late)


def _processor(sources: list[PipelineSource]) -> float:
    """The share of making a batch that a core works; 1 where only others' work was waited for."""
    share = sources[0].processor_share if sources else None
    return 1.0 if share is None or share > _WORKS else share


def _host_cores(facts: Mapping[str, list[dict[str, Any]]], cores: float) -> float:
    """The host's threads, for a program that computes on the CPU; else 1."""
    latest = facts["config"][-1] if facts["config"] else {}
    on = {d.split(":")[0] for model in latest.get("models", ()) for d in model["devices"]}
    if on - {"cpu"}:
        return 1.0
    return min(cores, float((latest.get("switches") or {}).get("threads") or 1))
