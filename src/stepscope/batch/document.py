"""The result of a batch size search: what `batch --json` prints and its folder keeps."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field

from stepscope.batch.program import BatchRequest, FinishedSearch
from stepscope.batch.search import BatchNote, BatchNoteKind, BatchSearch, SearchBounds, SearchStop
from stepscope.batch.sizes import SizeResult, knee_size, still_growing
from stepscope.launch.program import Program
from stepscope.measure.runner import run_command
from stepscope.record.privacy import masked_arguments
from stepscope.stats.verdict import Verdict, compare_processes, noise_floor

SCHEMA: Final = "stepscope.batch/2"
_NOISY = 0.05


class SizeRow(SizeResult, frozen=True, kw_only=True):
    """One size among the others. None: unknown."""

    memory_share: float | None = None
    of_best: float | None = None
    keeps_headroom: bool = False


class BatchSpeedup(Struct, frozen=True, kw_only=True):
    """A speedup in samples per second over the program's own size."""

    ratio: float
    low: float
    high: float
    verdict: Verdict


class Knee(SizeRow, frozen=True, kw_only=True):
    """The smallest size near the best throughput that keeps the headroom."""

    growing: bool = False  # whether throughput still grows there
    speedup: BatchSpeedup | None = None
    """None if it is the program's own size, or if that did not run."""


class LargestSize(SizeRow, frozen=True, kw_only=True):
    """The largest size that ran."""

    bounded: bool = False  # whether a larger one did not fit, or memory was nearly full
    too_large: int | None = None


class Batch(Struct, frozen=True, kw_only=True):
    """The result of a search for a batch size, in a program or of a function."""

    schema: Literal["stepscope.batch/2"] = SCHEMA
    program: str | None = None  # None for a function, like all fields about a program
    argv: tuple[str, ...] = ()
    fixes: tuple[str, ...] = ()
    started: str | None = None
    device: str
    device_name: str | None = None
    forked: bool | None = None  # for a function: whether it was called in forked processes
    machine: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str | None] = field(default_factory=dict)
    what: str | None = None  # the kind of the program's steps: training, inference or batches
    samples: int | None = None  # in an epoch
    drop_last: bool = False
    optimizers: tuple[tuple[str, float | None], ...] = ()  # name and learning rate
    own: int | None = None  # the program's batch size
    knee: Knee | None = None
    largest: LargestSize | None = None
    stopped: SearchStop | None = None
    curve: tuple[SizeRow, ...] = ()
    memory_bytes: float | None = None
    headroom: float
    within: float
    processes: int = 0
    seconds: float = 0.0
    notes: tuple[BatchNote, ...] = ()
    command: str | None = None
    folder: str | None = None


def search_result(search: BatchSearch, bounds: SearchBounds, own: int | None) -> dict[str, Any]:
    """Fields of `Batch`: curve, knee and largest. `own` is the program's own size, if any."""
    points, fit = search.sizes.points, search.roomy()
    found = knee_size(fit, bounds.within)
    best = max((one.samples_per_s or 0.0 for one in fit), default=0.0)
    memory = bounds.memory_bytes
    rows = {
        one.batch: SizeRow(
            **msgspec.structs.asdict(one),
            memory_share=one.memory_bytes / memory if one.memory_bytes and memory else None,
            of_best=one.samples_per_s / best if one.samples_per_s and best else None,
            keeps_headroom=one in fit,
        )
        for one in points
    }
    knee = None
    if found is not None:
        own_fits = own is not None and search.sizes.fits(own)
        knee = Knee(
            **msgspec.structs.asdict(rows[found.batch]),
            growing=found.batch == fit[-1].batch and still_growing(fit, bounds.within),
            speedup=_speedup(search, own, found.batch) if own_fits and own is not None else None,
        )
    largest = None
    if (batch := search.sizes.largest) is not None:
        too_large, full = search.sizes.too_large, (rows[batch].memory_share or 0.0) >= 0.9
        row = msgspec.structs.asdict(rows[batch])
        bounded = too_large is not None or full
        largest = LargestSize(**row, bounded=bounded, too_large=too_large)
    return {
        "own": own,
        "knee": knee,
        "largest": largest,
        "stopped": search.stop,
        "curve": tuple(rows.values()),
        "memory_bytes": memory,
        "headroom": bounds.headroom,
        "within": bounds.within,
        "processes": search.sizes.processes,
        "seconds": search.sizes.seconds,
        "notes": (*dict.fromkeys(search.notes), *_noise(found, bounds)),
    }


def _noise(found: SizeResult | None, bounds: SearchBounds) -> list[BatchNote]:
    """A note if processes of one size differ by more than the search tolerates between sizes."""
    if found is None or not found.samples_per_s or found.low is None or found.high is None:
        return []
    share = (found.high - found.low) / 2 / found.samples_per_s
    noisy = share > max(bounds.within, _NOISY)
    return [BatchNote(BatchNoteKind.NOISY, share=share)] if noisy else []


def _speedup(search: BatchSearch, own: int, batch: int) -> BatchSpeedup | None:
    """The speedup of a size; None for the program's own."""
    if own == batch:
        return None
    processes = {
        one.batch: [got.sample_ms for got in search.sizes.of(one.batch)]
        for one in search.sizes.points
        if one.ok
    }
    found = compare_processes(processes[own], processes[batch], noise_floor([*processes.values()]))
    return BatchSpeedup(ratio=found.ratio, low=found.low, high=found.high, verdict=found.verdict)


def batch_result(
    searched: FinishedSearch,
    request: BatchRequest,
    program: Program,
    started: str,
    folder: str | None = None,
) -> Batch:
    """The whole result of a search in a program."""
    from stepscope.hardware.machine import describe_machine

    facts, machine = searched.program, describe_machine()
    found = search_result(searched.search, searched.bounds, facts.batch)
    knee, command = found["knee"], None
    if knee is not None and knee.batch != facts.batch:
        command = run_command(program, (f"batch={knee.batch}", *request.fixes))
    return Batch(
        program=program.name,
        argv=tuple(masked_arguments(program.arguments)),
        fixes=request.fixes,
        started=started,
        device=facts.device,
        device_name=facts.device_name,
        machine=msgspec.to_builtins(machine),
        versions=machine.versions,
        what=searched.what,
        samples=facts.samples,
        drop_last=facts.drop_last,
        optimizers=facts.optimizers,
        command=command,
        folder=folder,
        **found,
    )
