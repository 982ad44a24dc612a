"""What a workload program measures: the file it writes with `--measure`, and bench reads."""

from enum import StrEnum

from msgspec import Struct


class MeasureNote(StrEnum):
    """A caution about the numbers, as shown."""

    WARMUP_UNSETTLED = "warm-up did not settle"
    SCORED_DURING_TRAINING = (
        "scored during training: step times exclude it, energy and GPU use include it"
    )


class ProgramError(Struct, frozen=True):
    """What ended a program early."""

    kind: str  # A `bench.results.PointStatus`: "out_of_memory" or "failed"
    text: str


class Warmup(Struct, frozen=True):
    """Calls before the measured section, and whether their times settled."""

    calls: int
    seconds: float
    settled: bool
    first_call_s: float | None


class Score(Struct, frozen=True):
    """The test split scored after a step; `train_s` excludes scoring."""

    step: int
    train_s: float
    loss: float | None
    score: float | None


class LoadedDataset(Struct, frozen=True):
    """`samples` is None for a stream."""

    kind: str
    samples: int | None
    sample_bytes: int


class Measured(Struct, kw_only=True, tag_field="mode"):
    """One process; None: unknown. `series_ms` are single calls of a section of `calls` calls
    between `started_ns` and `ended_ns` (CLOCK_MONOTONIC)."""

    schema: str = "stepscope.measured/1"
    model: str | None = None
    batch: int | None = None
    device: str | None = None
    device_name: str | None = None
    torch: str | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    elapsed_s: float = 0.0
    calls: int = 0
    samples: int = 0
    series_ms: list[float] = []
    notes: list[str] = []
    error: ProgramError | None = None


class ModelMeasured(Measured, kw_only=True):
    """What the programs that call a model share."""

    parameters: int | None = None
    flops_per_sample: float | None = None
    flops_why_not: str | None = None
    arithmetic: str | None = None
    clock: str | None = None
    tokens_per_sample: int | None = None
    warmup: Warmup | None = None
    first_calls_extra_s: float | None = None
    peak_memory_bytes: int | None = None
    reserved_memory_bytes: int | None = None


class TrainMeasured(ModelMeasured, kw_only=True, tag="train"):
    """A training: its losses by step, scores, and the seconds until a score was reached."""

    losses: list[tuple[int, float | None]] = []
    scores: list[Score] = []
    score_name: str | None = None
    final_loss: float | None = None
    final_score: float | None = None
    steps: int | None = None
    train_samples: int | None = None
    time_to_score_s: float | None = None


class InferMeasured(ModelMeasured, kw_only=True, tag="infer"):
    """`series_ms` are calls waited for one by one, `throughput_ms` calls back to back."""

    throughput_ms: list[float] = []


class GenerateMeasured(ModelMeasured, kw_only=True, tag="generate"):
    """Tokens after a prompt; `token_ms` is the mean of those after the first."""

    prompt: int | None = None
    new_tokens: int | None = None
    first_token_ms: list[float] = []
    token_ms: list[float] = []
    tokens_per_s: float | None = None


class LoadMeasured(Measured, kw_only=True, tag="load"):
    """A DataLoader's batches; `warmup` counts those left out before the section."""

    schema: str = "stepscope.loaded/1"
    workers: int = 0
    pin: bool = False
    prefetch: int | None = None
    dataset: LoadedDataset | None = None
    first_s: float | None = None
    warmup: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    rss_bytes: int | None = None
    cores: float | None = None


AnyMeasured = TrainMeasured | InferMeasured | GenerateMeasured | LoadMeasured
MEASURED: dict[str, type[AnyMeasured]] = {
    "train": TrainMeasured,
    "infer": InferMeasured,
    "generate": GenerateMeasured,
    "load": LoadMeasured,
}
"""What each program writes, by its mode."""
