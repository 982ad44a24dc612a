"""The CPU against the GPU: one model trained on both with the same seed, samples and batches."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict, replace

from stepscope.bench import measure_point, results
from stepscope.bench.build_request import why_no_cuda
from stepscope.bench.grid import BenchRequest, Point, Settings
from stepscope.bench.machine import device_ceilings
from stepscope.bench.record import Measure, ProcessRecord, Records, Tell, results_of
from stepscope.bench.results import CpuGpuStudy, PointStatus, StudySide
from stepscope.bench.studies.measurements import StudyMeasurements, study_subject
from stepscope.bench.studies.operator_kinds import StepTimes, operator_rows, step_times
from stepscope.bench.summary import max_known, point_speed, speedup
from stepscope.measure.trial.folder import OUTPUT_FILE
from stepscope.record.errors import StepscopeError, UsageError
from stepscope.record.timeline import Timeline
from stepscope.workloads.measure.record import MeasureNote, TrainMeasured

FIRST: Final = 10  # first steps whose losses are compared
WITHIN: Final = 0.01


def loss_curves(ours: TrainMeasured, theirs: TrainMeasured) -> results.Curves:
    """Losses and scores by step, for steps that both have."""
    a, b = dict(ours.losses), dict(theirs.losses)
    losses = tuple(
        results.LossPoint(step, a[step], b[step]) for step in sorted(a.keys() & b.keys())
    )
    cpu, gpu = ({one.step: one for one in side.scores} for side in (ours, theirs))
    scores = (
        results.ScorePoint(step, one.score, other.score, one.train_s, other.train_s)
        for step, one, other in (
            (step, cpu[step], gpu[step]) for step in sorted(cpu) if step in gpu
        )
        if one.score is not None and other.score is not None
    )
    return results.Curves(losses, tuple(scores))


def losses_agree(ours: TrainMeasured, theirs: TrainMeasured) -> results.Agreement:
    """How far two trainings differ; None if unknown."""
    first = loss_curves(ours, theirs).losses[:FIRST]
    loss = _relative(ours.final_loss, theirs.final_loss)
    score = _minus(ours.final_score, theirs.final_score)
    score = None if score is None or not isfinite(score) else abs(score)
    apart = score if score is not None else loss
    relatives = [_relative(one.cpu, one.gpu) for one in first]
    return results.Agreement(
        first_steps=len(first),
        first_loss_relative=max_known(relatives),
        final_loss_relative=loss,
        final_score_difference=score,
        score_name=ours.score_name,
        within=WITHIN,
        same=None if apart is None else apart <= WITHIN,
    )


def _relative(a: float | None, b: float | None) -> float | None:
    if a is None or b is None or not (isfinite(a) and isfinite(b)):
        return None
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


_STEPS, _FIRST, _RECORDED = 14, 8, 4
_WHOLE: Final = ("epochs", "steps", "seconds", "target_score")
"""Settings for a training's length; further processes measure only speed."""


def _record_window(point: Point, folder: Path, timeout_s: float | None) -> Timeline | str:
    """The timeline of four steps after a short warm-up, or why there is none."""
    from stepscope.launch.program import Program
    from stepscope.trace.kineto.read import read_kineto

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    trace = folder / "window.pt.trace.json"
    module, *arguments = shortened(point).command(folder / "measured.json")
    command = Program(module, tuple(arguments), module=True).command
    environ = measure_point.environment_with(point.fixes, folder, _RECORDED, _FIRST)
    outcome = measure_point.run_logged(command, environ, timeout_s, folder / OUTPUT_FILE)
    if not trace.is_file():
        return f"no steps were recorded (exit code {outcome.exit_code})"
    try:
        return read_kineto(trace, processes=1)
    except StepscopeError as problem:
        return str(problem)


def shortened(point: Point) -> Point:
    """The same point for a few steps, with samples already on the device if possible: a loader's
    work is not the operators'."""
    settings: dict[str, Any] = {k: v for k, v in point.settings.items() if k not in _WHOLE}
    settings["steps"] = _STEPS
    if settings.get("data", "synthetic") == "synthetic":
        settings["data"] = "resident"
        settings["samples"] = 4 * point.batch
    settings["test_samples"] = min(point.batch, settings.get("test_samples", point.batch))
    return Point.of(point.model, point.mode, point.batch, point.device, point.fixes, **settings)


def run(
    request: BenchRequest,
    folder: Path,
    tell: Tell,
    *,
    devices: tuple[str, str] = ("cpu", "cuda"),
    measure: Measure = measure_point.measure,
    record: Callable[[Point, Path, float | None], Timeline | str] = _record_window,
    ceilings: Callable[[str, Tell], Mapping[str, float]] = device_ceilings,
) -> CpuGpuStudy:
    """The study. Raises UsageError for a request it cannot answer."""
    about = study_subject(request)
    lacking = why_no_cuda() if "cuda" in devices else None
    if lacking:
        raise UsageError(f"--study cpu-gpu needs a GPU: {lacking}; --device cpu measures the CPU")
    if len(request.variants) > 1:
        raise UsageError("--study cpu-gpu takes one --fix: what both devices are to run with")
    fixes = request.variants[0].fixes if request.variants else ()
    settings: Settings = {"data": "resident", **about.settings}
    if not any(settings.get(name) for name in _WHOLE):
        settings["epochs"] = 3
    model, batch = about.model, about.batch
    points = [Point.of(model, "train", batch, device, fixes, **settings) for device in devices]
    kept = StudyMeasurements(folder, measure, request.timeout_s)
    records = _measured(points, request.rounds, kept, tell)
    sides = [_side(several) for several in records]
    study = CpuGpuStudy(
        model=model,
        batch=batch,
        fixes=fixes,
        settings=settings,
        cpu=sides[0],
        gpu=sides[1],
        notes=_notes(records),
    )
    if any(side.status is not PointStatus.OK for side in sides):
        return study
    cpu, gpu = (_training(several) for several in records)
    study = replace(
        study,
        speedup=speedup(records[0], records[1], "cpu", None),
        saved=results.Saved(
            _minus(sides[0].epoch_s, sides[1].epoch_s), _minus(sides[0].train_s, sides[1].train_s)
        ),
        curves=loss_curves(cpu, gpu),
        agreement=losses_agree(cpu, gpu),
    )
    times: list[StepTimes] = []
    for point in points:
        tell(f"recording a few steps on {point.device}")
        found = record(point, kept.place(point, "window"), request.timeout_s)
        if not isinstance(found, Timeline):
            return replace(study, notes=(*study.notes, f"no operators of {point.device}: {found}"))
        times.append(step_times(found))
    limits = (ceilings(devices[0], tell), ceilings(devices[1], tell))
    kinds = (cpu.arithmetic or "", gpu.arithmetic or "")
    step_ms = sides[1].mean_ms if times[1].on_device else None
    return replace(
        study,
        operators=tuple(operator_rows(times, limits, kinds, fixes)),
        ceilings={"cpu": dict(limits[0]), "gpu": dict(limits[1])},
        waiting=None if step_ms is None else results.GpuWait(step_ms, min(times[1].ms, step_ms)),
    )


def _measured(
    points: Sequence[Point], rounds: int, kept: StudyMeasurements, tell: Tell
) -> tuple[list[ProcessRecord], list[ProcessRecord]]:
    """The trainings, faster device first, then further processes for speed, alternating."""
    found: tuple[list[ProcessRecord], list[ProcessRecord]] = ([], [])
    for which in (1, 0):
        tell(f"training on {points[which].device}")
        found[which].append(kept(points[which], which + 1))
        if found[which][0].status is not PointStatus.OK:
            return found
    for number in range(2, rounds + 1):
        for which, point in enumerate(points):
            settings = {name: v for name, v in point.settings.items() if name not in _WHOLE}
            tell(f"speed on {point.device}, process {number} of {rounds}")
            found[which].append(kept(replace(point, settings=settings), 10 * number + which))
    return found


def _training(records: Records) -> TrainMeasured:
    """What the first process measured; empty if it failed."""
    measured = records[0].measured
    return measured if isinstance(measured, TrainMeasured) else TrainMeasured()


def _side(records: Records) -> StudySide:
    """One device: its speed over all processes, and the result of its training."""
    if not records:
        return StudySide(status=PointStatus.NOT_TRIED, why="the other device failed first")
    first, measured = records[0], _training(records)
    fine = results_of(records)
    speed = point_speed(fine, None)
    size, rate, scores = measured.train_samples, speed.samples_per_s, measured.scores
    return StudySide(
        status=first.status,
        why=first.why,
        device=first.point.device,
        device_name=measured.device_name,
        processes=len(fine),
        **asdict(speed),
        arithmetic=measured.arithmetic,
        steps=measured.steps,
        epoch_s=size / rate if size and rate else None,
        train_s=scores[-1].train_s if scores else measured.elapsed_s or None,
        loss=measured.final_loss,
        score=measured.final_score,
        score_name=measured.score_name,
        peak_memory_bytes=measured.peak_memory_bytes,
        energy_j=first.machine.energy_j,
    )


def _minus(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs


def _notes(records: Sequence[Records]) -> tuple[str, ...]:
    """Notes for the reader: fixes that did not apply, processes left out."""
    found = []
    for several in records:
        for number, record in enumerate(several, start=1):
            device = record.point.device
            for fix in record.fixes:
                if fix.state == "not applicable":
                    found.append(f"{device}: {fix.name} not applied: {'; '.join(fix.reasons)}")
            if record.status is not PointStatus.OK and number > 1:
                found.append(f"{device}: process {number} left out: {record.why}")
            notes = record.measured.notes if record.measured else ()
            usual = MeasureNote.SCORED_DURING_TRAINING
            found += [f"{device}: {note}" for note in notes if note != usual]
    return tuple(dict.fromkeys(found))
