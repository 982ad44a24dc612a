"""What a study takes from a request, and its measurements, each made once and reused when the study
resumes."""

import hashlib
from pathlib import Path
from typing import NamedTuple

from msgspec import to_builtins
from msgspec.json import decode

from stepscope.bench.grid import BenchRequest, Point, Settings
from stepscope.bench.record import Measure, ProcessRecord
from stepscope.record.errors import UsageError
from stepscope.store.json_file import write_json


class StudySubject(NamedTuple):
    model: str
    batch: int
    settings: Settings


def study_subject(request: BenchRequest) -> StudySubject:
    """The model, batch and settings of a study. Raises UsageError."""
    from stepscope.workloads.catalogue import find_workload

    study = f"--study {request.study}"
    if len(request.models) != 1:
        raise UsageError(f"{study} takes one model, not {len(request.models)}")
    if request.modes != ("train",):
        raise UsageError(f"{study} trains its model: --mode train, or none")
    if request.batches is not None and len(request.batches) != 1:
        raise UsageError(f"{study} takes one batch size: --batch 64")
    if request.ablate:
        raise UsageError(f"{study} and --ablate do not go together")
    model = request.models[0]
    batch = request.batches[0] if request.batches else find_workload(model).batch
    return StudySubject(model, batch, dict(request.settings))


_RECORD = "record.json"


class StudyMeasurements:
    """Measures points in separate processes below `folder`."""

    def __init__(self, folder: Path, measure: Measure, timeout_s: float | None) -> None:
        self._folder = folder / "study"
        self._measure = measure
        self._timeout_s = timeout_s

    def __call__(self, point: Point, number: int = 1) -> ProcessRecord:
        """The record of the point's n-th process."""
        place = self.place(point, str(number))
        try:
            known = decode((place / _RECORD).read_bytes(), type=ProcessRecord)
            if known.key == point.key():
                return known
        except (OSError, ValueError):  # not measured yet, or incomplete
            pass
        record = self._measure(point, place, self._timeout_s)
        place.mkdir(parents=True, exist_ok=True)
        write_json(place / _RECORD, to_builtins(record), indent=None)
        return record

    def place(self, point: Point, purpose: str) -> Path:
        """A folder for one process of a point."""
        digest = hashlib.sha256(point.key().encode()).hexdigest()[:12]
        return self._folder / f"{point.device}-{point.batch}-{digest}-{purpose}"
