"""The CPU against the GPU: one model trained on both with the same seed, samples and batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from stepscope.bench import child
from stepscope.bench.ask import no_cuda
from stepscope.bench.point import Point
from stepscope.bench.request import Request
from stepscope.bench.speed import speed, speedup
from stepscope.bench.studies.agreement import agreement, curves
from stepscope.bench.studies.device_ceilings import device_ceilings
from stepscope.bench.studies.kept import Kept, Measure, Record, Tell
from stepscope.bench.studies.kinds import StepTimes, step_times
from stepscope.bench.studies.one_model import subject
from stepscope.bench.studies.operators import operators
from stepscope.bench.studies.window import Recorder, recorded
from stepscope.record.errors import UsageError
from stepscope.record.timeline import Timeline

_EPOCHS: Final = 3
_ROLES: Final = ("cpu", "gpu")
_WHOLE: Final = ("epochs", "steps", "seconds", "target_score")
"""Settings that say how long a training is; further processes measure speed alone."""
_EXPECTED: Final = "scoring went on in between"
"""How a note begins that is true of every training here: it is scored after each epoch."""


def run(
    request: Request,
    folder: Path,
    tell: Tell,
    *,
    devices: tuple[str, str] = ("cpu", "cuda"),
    measure: Measure = child.measure,
    record: Recorder = recorded,
    ceilings: Callable[[str, Tell], Mapping[str, float]] = device_ceilings,
) -> dict[str, Any]:
    """The study as a document. Raises UsageError for a request it cannot answer."""
    about = subject(request)
    lacking = no_cuda() if "cuda" in devices else None
    if lacking:
        raise UsageError(f"--study cpu-gpu needs a GPU: {lacking}; --device cpu measures the CPU")
    if len(request.variants) > 1:
        raise UsageError("--study cpu-gpu takes one --fix: what both devices are to run with")
    fixes = request.variants[0].fixes if request.variants else ()
    settings = {"data": "resident", **about.settings}
    if not any(settings.get(name) for name in _WHOLE):
        settings["epochs"] = _EPOCHS
    points = [
        Point.of(about.model, "train", about.batch, device, fixes, **settings) for device in devices
    ]
    kept = Kept(folder, measure, request.timeout_s)
    records = _measured(points, request.rounds, kept, tell)
    sides = [_side(several) for several in records]
    study: dict[str, Any] = {
        "name": "cpu-gpu",
        "model": about.model,
        "batch": about.batch,
        "fixes": list(fixes),
        "settings": settings,
        "cpu": sides[0],
        "gpu": sides[1],
        "notes": _notes(records),
        **dict.fromkeys(("speedup", "saved", "curves", "agreement", "operators", "waiting")),
    }
    if any(side["status"] != "ok" for side in sides):
        return study
    cpu, gpu = (several[0]["measured"] for several in records)
    study["speedup"] = speedup(records[0], records[1], "cpu", None)
    study["saved"] = _saved(sides)
    study["curves"] = curves(cpu, gpu)
    study["agreement"] = agreement(cpu, gpu)
    times: list[StepTimes] = []
    for point in points:
        tell(f"recording a few steps on {point.device}")
        found = record(point, kept.place(point, "window"), request.timeout_s)
        if not isinstance(found, Timeline):
            study["notes"].append(f"no operators of {point.device}: {found}")
            return study
        times.append(step_times(found))
    limits = (ceilings(devices[0], tell), ceilings(devices[1], tell))
    kinds = (cpu["arithmetic"], gpu["arithmetic"])
    study["operators"] = [asdict(row) for row in operators(times, limits, kinds, fixes)]
    study["ceilings"] = dict(zip(_ROLES, map(dict, limits), strict=True))
    study["waiting"] = _waiting(sides[1], times[1])
    return study


def _measured(
    points: Sequence[Point], rounds: int, kept: Kept, tell: Tell
) -> tuple[list[Record], list[Record]]:
    """The trainings, the faster device first, then further processes for speed, taking turns."""
    found: tuple[list[Record], list[Record]] = ([], [])
    for which in (1, 0):
        tell(f"training on {points[which].device}")
        found[which].append(kept(points[which], which + 1))
        if found[which][0]["status"] != "ok":
            return found
    for number in range(2, rounds + 1):
        for which, point in enumerate(points):
            settings = {name: v for name, v in point.settings if name not in _WHOLE}
            again = Point.of(
                point.model, point.mode, point.batch, point.device, point.fixes, **settings
            )
            tell(f"speed on {point.device}, process {number} of {rounds}")
            found[which].append(kept(again, 10 * number + which))
    return found


def _side(records: Sequence[Record]) -> dict[str, Any]:
    """One device: its speed over all processes, and what its training came to."""
    if not records:
        return {"status": "not tried", "why": "the other device failed first", "device": None}
    first = records[0]
    measured = first["measured"] or {}
    fine = [record["measured"] for record in records if record["status"] == "ok"]
    quick = speed(fine, None)
    size, rate = measured.get("train_samples"), quick["samples_per_s"]
    scores = measured.get("scores") or []
    return {
        "status": first["status"],
        "why": first["why"],
        "device": first["point"]["device"],
        "device_name": measured.get("device_name"),
        "processes": len(fine),
        **quick,
        "arithmetic": measured.get("arithmetic"),
        "steps": measured.get("steps"),
        "epoch_s": size / rate if size and rate else None,
        "train_s": scores[-1]["train_s"] if scores else measured.get("elapsed_s"),
        "loss": measured.get("final_loss"),
        "score": measured.get("final_score"),
        "score_name": measured.get("score_name"),
        "peak_memory_bytes": measured.get("peak_memory_bytes"),
        "energy_j": first["machine"].get("energy_j"),
    }


def _saved(sides: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Seconds that the second device saves, in an epoch and in the whole training."""
    return {
        name: sides[0][name] - sides[1][name]
        if sides[0][name] is not None and sides[1][name] is not None
        else None
        for name in ("epoch_s", "train_s")
    }


def _waiting(gpu: Mapping[str, Any], times: StepTimes) -> dict[str, float] | None:
    """A step of the GPU as measured, and how much of it its kernels took; None without kernels."""
    if not times.on_device or gpu["mean_ms"] is None:
        return None
    return {"step_ms": gpu["mean_ms"], "busy_ms": min(times.ms, gpu["mean_ms"])}


def _notes(records: Sequence[Sequence[Record]]) -> list[str]:
    """What a reader should know: fixes that did not apply, processes that did not count."""
    found = []
    for several in records:
        for number, record in enumerate(several, start=1):
            device = record["point"]["device"]
            found += [
                f"{device}: without {fix['name']}: {'; '.join(fix['reasons'])}"
                for fix in record["fixes"]
                if fix["state"] == "not applicable"
            ]
            if record["status"] != "ok" and number > 1:
                found.append(f"{device}: process {number} did not count: {record['why']}")
            said = (record["measured"] or {}).get("notes", ())
            found += [f"{device}: {note}" for note in said if not note.startswith(_EXPECTED)]
    return list(dict.fromkeys(found))
