"""The record of one process of a point: how it ended, what it measured, what the machine did."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from msgspec import Struct, convert

from stepscope.bench.grid import Point
from stepscope.bench.results import FixReport, PointStatus
from stepscope.record.fix import FixOutcome
from stepscope.record.fix_words import outcome_json
from stepscope.workloads.measure.record import AnyMeasured


class MachineUse(Struct, frozen=True):
    """Means over the measured section; None: unknown. `gpu_busy` and `host_busy` are shares,
    `own_cores` and `other_cores` how many cores this program and all others kept busy, `energy_j`
    joules of the device the point ran on."""

    gpu_busy: float | None = None
    energy_j: float | None = None
    host_energy_j: float | None = None
    power_w: float | None = None
    sm_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    other_processes: int | None = None
    host_busy: float | None = None
    own_cores: float | None = None
    other_cores: float | None = None


class ProcessRecord(Struct, frozen=True, kw_only=True):
    """One process. `measured` is None if it wrote nothing complete."""

    key: str
    point: Point
    status: PointStatus
    why: str | None = None
    fixes: tuple[FixReport, ...] = ()
    measured: AnyMeasured | None = None
    machine: MachineUse = MachineUse()
    seconds: float = 0.0
    exit_code: int | None = None
    round: int = 0


Records = Sequence[ProcessRecord]
Tell = Callable[[str], None]
Measure = Callable[[Point, Path, float | None], ProcessRecord]
"""Measures a point in its own process: (point, folder, timeout in seconds)."""


def fix_reports(outcomes: Iterable[FixOutcome]) -> tuple[FixReport, ...]:
    """Fix outcomes as stored in records and results."""
    return convert([outcome_json(one) for one in outcomes], tuple[FixReport, ...])


def results_of(records: Records) -> list[AnyMeasured]:
    """The measurements of the records that succeeded."""
    return [one.measured for one in records if one.status is PointStatus.OK and one.measured]


def by_point(records: Records) -> list[list[ProcessRecord]]:
    """The records of each point, in order of their rounds."""
    found: dict[str, list[ProcessRecord]] = {}
    for record in sorted(records, key=lambda one: one.round):
        found.setdefault(record.key, []).append(record)
    return list(found.values())
