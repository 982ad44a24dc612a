"""The results of a benchmark. `BenchResult` is the document that `bench --json` prints."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from stepscope.analyze.timeline.roofline.ceilings import Ceilings
from stepscope.analyze.timeline.roofline.rates import OperatorRate, StepWork
from stepscope.bench.grid import BenchRequest, Settings
from stepscope.workloads.measure.record import LoadedDataset

BENCH_SCHEMA = "stepscope.bench/1"


class PointStatus(StrEnum):
    """How a point, or one process of it, ended."""

    OK = "ok"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    MISSING = "missing"
    NOT_TRIED = "not tried"
    NOT_APPLICABLE = "not applicable"

    @property
    def label(self) -> str:
        return self.value.replace("_", " ")


class Speedup(Struct, frozen=True):
    """`ratio`: how many times as fast as the variant named `against`, with its 95% interval."""

    against: str
    ratio: float
    low: float
    high: float
    verdict: str  # a `stats.verdict.Verdict` in capitals


class UnappliedFix(Struct, frozen=True):
    """A requested fix that did not apply."""

    name: str
    why: str


class FixReport(Struct, frozen=True, kw_only=True):
    """What became of a requested fix: the records and their sentences."""

    name: str
    value: int | str | None = None
    state: str  # a `record.fix.FixState`
    kind: str | None = None
    where: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    applied: tuple[dict[str, Any], ...] = ()
    not_applied: tuple[dict[str, Any], ...] = ()
    broke: dict[str, Any] | None = None


class PointSummary(Struct, frozen=True, kw_only=True):
    """A point over all its processes. None: not measured."""

    key: str
    model: str
    mode: str
    batch: int
    device: str
    fixes: tuple[str, ...] = ()
    variant: str = "none"
    settings: Settings = {}
    status: PointStatus = PointStatus.OK
    why: str | None = None
    not_applied: tuple[UnappliedFix, ...] = ()
    rounds: int = 0
    samples_per_s: float | None = None
    batches_per_s: float | None = None
    mean_ms: float | None = None
    mean_low_ms: float | None = None
    mean_high_ms: float | None = None
    std_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    epoch_s: float | None = None
    loss: float | None = None
    score: float | None = None
    score_name: str | None = None
    steps: int | None = None
    time_to_score_s: float | None = None
    first_token_ms: float | None = None
    token_ms: float | None = None
    tokens_per_s: float | None = None
    peak_memory_bytes: float | None = None
    gpu_busy: float | None = None
    flops_per_sample: float | None = None
    tflops_per_s: float | None = None
    mfu: float | None = None
    arithmetic: str | None = None
    energy_j_per_sample: float | None = None
    carbon_g_per_million: float | None = None
    cost_per_million: float | None = None
    first_calls_s: float | None = None
    clock: str | None = None
    parameters: int | None = None
    unstable: bool = False
    unstable_why: str | None = None
    notes: tuple[str, ...] = ()
    speedup: Speedup | None = None

    @property
    def throughput(self) -> float | None:
        """Samples per second; tokens per second in generation."""
        return self.tokens_per_s if self.mode == "generate" else self.samples_per_s

    @property
    def half_interval(self) -> float | None:
        """Half of the mean's 95% interval, as a share of it."""
        if not self.mean_ms or self.mean_low_ms is None or self.mean_high_ms is None:
            return None
        return (self.mean_high_ms - self.mean_low_ms) / 2 / self.mean_ms

    @property
    def throughput_unit(self) -> str:
        return "tokens/s" if self.mode == "generate" else "samples/s"


class LoaderPoint(PointSummary, frozen=True, kw_only=True):
    """A DataLoader with one setting."""

    workers: int
    pin: bool
    prefetch: int | None  # None without workers
    samples_per_s_low: float | None = None
    samples_per_s_high: float | None = None
    first_batch_ms: float | None = None
    mb_per_s: float | None = None
    cores: float | None = None  # how many it kept busy


class LoaderChoice(Struct, frozen=True, kw_only=True):
    """The fastest setting, the simplest within 5% of it, and the default at the same batch."""

    best: LoaderPoint | None = None
    simplest: LoaderPoint | None = None
    default: LoaderPoint | None = None
    speedup: Speedup | None = None
    """Of the simplest against the default; None if it is the default."""
    line: str | None = None  # the DataLoader call to write


class BatchChoice(LoaderChoice, frozen=True, kw_only=True):
    """The choice at one batch size."""

    batch: int


class LoaderResult(LoaderChoice, frozen=True, kw_only=True):
    """What `bench loader` found beside its points."""

    dataset: LoadedDataset | None = None
    device_name: str | None = None
    usable_cores: float = 1
    by_batch: tuple[BatchChoice, ...] = ()


class CountedWork(Struct, frozen=True, kw_only=True):
    """What counters say about some calls of an operator, beside the model for the same calls."""

    calls: int
    time_share: float
    flops: float | None = None
    model_flops: float | None = None
    flops_error: float | None = None
    bytes: float | None = None
    model_bytes: float | None = None
    bytes_ratio: float | None = None


class OperatorUse(Struct, frozen=True, kw_only=True):
    """An operator in one dtype, per step. None: unknown."""

    name: str
    time_ms: float
    share: float
    dtype: str | None = None
    category: str | None = None
    calls: float | None = None
    kernels: float | None = None
    flops: float | None = None
    bytes: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    bound: str | None = None
    ceiling_share: float | None = None
    counted: CountedWork | None = None


class KernelRates(Struct, frozen=True, kw_only=True):
    """A kernel's counters over its time in the recording."""

    runs: int = 0
    flops: float | None = None
    bytes: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None


class KernelUse(Struct, frozen=True, kw_only=True):
    """All runs of one kernel, per step."""

    name: str
    time_ms: float
    share: float
    operator: str | None = None
    category: str | None = None
    runs: float | None = None
    tensor_core: bool | None = None
    occupancy: float | None = None
    counted: KernelRates | None = None


class NcuUse(Struct, frozen=True):
    """Whether Nsight Compute counted, or why not."""

    used: bool
    why_not: str | None
    seconds: float


class ShapeUse(OperatorRate, frozen=True, kw_only=True):
    """An operator on inputs of one shape, `calls` and `time_ms` per step."""

    calls: float  # type: ignore[assignment]
    time_ms: float


class KernelTables(Struct, frozen=True, kw_only=True):
    """The operators and kernels of a recorded step, heaviest first."""

    on: str  # device, or host if there are no kernels
    work_ms: float
    launched: float
    known_share: float
    operators: tuple[OperatorUse, ...]
    operators_in_all: int
    kernels: tuple[KernelUse, ...]
    step: StepWork
    ceilings: Ceilings | None = None
    steps: int = 1
    shapes: tuple[ShapeUse, ...] = ()
    counted: float = 0.0
    join: dict[str, int] = {}


class KernelsResult(KernelTables, frozen=True, kw_only=True):
    """What `bench kernels` found."""

    model: str
    mode: str
    batch: int
    device: str
    fixes: tuple[str, ...] = ()
    applied: tuple[FixReport, ...] = ()
    ncu: NcuUse | None = None


class PointSpeed(Struct, frozen=True):
    """Samples and batches per second over all throughput sections, and single step times. All None
    if nothing was measured."""

    samples_per_s: float | None = None
    batches_per_s: float | None = None
    mean_ms: float | None = None
    mean_low_ms: float | None = None
    mean_high_ms: float | None = None
    std_ms: float | None = None
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class StudySide(PointSpeed, frozen=True, kw_only=True):
    """One device of the CPU–GPU study."""

    status: PointStatus
    why: str | None = None
    device: str | None = None
    device_name: str | None = None
    processes: int = 0
    arithmetic: str | None = None
    steps: int | None = None
    epoch_s: float | None = None
    train_s: float | None = None
    loss: float | None = None
    score: float | None = None
    score_name: str | None = None
    peak_memory_bytes: float | None = None
    energy_j: float | None = None


class LossPoint(Struct, frozen=True):
    """The loss of one step on both devices."""

    step: int
    cpu: float | None
    gpu: float | None


class ScorePoint(Struct, frozen=True):
    """The score after a step, and the seconds of training until then, on both devices."""

    step: int
    cpu: float
    gpu: float
    cpu_s: float
    gpu_s: float


class Curves(Struct, frozen=True):
    """Values at steps that both devices have."""

    losses: tuple[LossPoint, ...] = ()
    scores: tuple[ScorePoint, ...] = ()


class Agreement(Struct, frozen=True, kw_only=True):
    """How far two trainings differ: relative for losses, absolute for scores. `same`: whether the
    score, or without one the last loss, agrees `within` this."""

    first_steps: int
    first_loss_relative: float | None
    final_loss_relative: float | None
    final_score_difference: float | None
    score_name: str | None
    within: float
    same: bool | None


class OperatorRow(Struct, frozen=True, kw_only=True):
    """One kind of operator per step. None: the device spent no time on it, or unknown."""

    kind: str
    cpu_ms: float | None
    cpu_share: float | None
    gpu_ms: float | None
    gpu_share: float | None
    speedup: float | None
    kernels: float | None
    kernel_us: float | None
    bound: str | None  # what limits it: "matrix products", "memory" or "sequence"
    possible: float | None  # the speedup the ceilings' ratio would allow
    why: str


class Saved(Struct, frozen=True):
    """Seconds the GPU saves in an epoch and in the whole training."""

    epoch_s: float | None
    train_s: float | None


class GpuWait(Struct, frozen=True):
    """A step of the GPU as measured, and how much of it its kernels took."""

    step_ms: float
    busy_ms: float


class CpuGpuStudy(Struct, frozen=True, kw_only=True, tag_field="name", tag="cpu-gpu"):
    """One model trained on both devices."""

    model: str
    batch: int
    cpu: StudySide
    gpu: StudySide
    fixes: tuple[str, ...] = ()
    settings: Settings = {}
    notes: tuple[str, ...] = ()
    speedup: Speedup | None = None
    saved: Saved | None = None
    curves: Curves | None = None
    agreement: Agreement | None = None
    operators: tuple[OperatorRow, ...] | None = None
    ceilings: dict[str, dict[str, float]] | None = None
    waiting: GpuWait | None = None


class SearchBound(StrEnum):
    """What ended the search for the largest batch."""

    MEMORY = "memory"
    LIMIT = "limit"
    TIME = "time"
    FAILURE = "failure"


class BatchTry(Struct, frozen=True):
    """A batch size tried for a few steps."""

    batch: int
    status: PointStatus
    why: str | None = None
    seconds: float = 0.0
    peak_memory_bytes: int | None = None


class TechniqueRow(Struct, frozen=True, kw_only=True):
    """A way to save memory. Batches count the samples of an optimizer step."""

    technique: str
    fixes: tuple[str, ...] = ()
    accumulate: int = 1
    status: PointStatus = PointStatus.NOT_APPLICABLE
    why: str | None = None
    applies: bool = False
    peak_memory_bytes: float | None = None
    of_first: float | None = None
    samples_per_s: float | None = None
    largest_batch: int | None = None
    largest_micro_batch: int | None = None
    too_large: int | None = None
    bound: SearchBound | None = None
    bound_why: str | None = None
    largest_samples_per_s: float | None = None
    tries: tuple[BatchTry, ...] = ()


class MemoryStudy(Struct, frozen=True, kw_only=True, tag_field="name", tag="memory"):
    """What each technique saves of a model's memory."""

    model: str
    batch: int
    device: str
    rows: tuple[TechniqueRow, ...]
    device_name: str | None = None
    memory_limit_gib: float | None = None
    batch_limit: int = 0
    settings: Settings = {}
    notes: tuple[str, ...] = ()


class BenchResult(Struct, frozen=True, kw_only=True):
    """A whole benchmark: a grid of points, and the part of a study or subcommand."""

    schema: str = BENCH_SCHEMA
    machine: dict[str, Any] = {}
    versions: dict[str, str | None] = {}
    command: str | None = None
    started: str | None = None
    request: BenchRequest = BenchRequest()
    noise_floor: float | None = None
    points: tuple[PointSummary, ...] = ()
    notes: tuple[str, ...] = ()
    study: CpuGpuStudy | MemoryStudy | None = None
    kernels: KernelsResult | None = None
    loader: LoaderResult | None = None

    def json_text(self) -> str:
        """The indented document, without absent parts."""
        document = msgspec.json.decode(msgspec.json.encode(self))
        for part in ("study", "kernels", "loader"):
            if document[part] is None:
                del document[part]
        return json.dumps(document, indent=1)


class _LoaderBench(BenchResult, frozen=True, kw_only=True):
    points: tuple[LoaderPoint, ...] = ()


def bench_type(document: Mapping[str, object]) -> type[BenchResult]:
    """The type a JSON document decodes to: loader points have their own fields."""
    return _LoaderBench if document.get("loader") else BenchResult
