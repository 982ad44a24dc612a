"""The facts a probe writes to facts.jsonl, one record per kind, shared by writer and reader.

Imported into the user's program, so without torch, numpy or msgspec.
"""

from collections import defaultdict
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

from stepscope.record.fields import Record
from stepscope.record.kinds import EndPart, HostWait, SampleWork, WordedEnum
from stepscope.record.problems import Problem


class SiteKind(StrEnum):
    """What a source line of the program does."""

    LOADER = "loader"
    """Constructs a DataLoader."""
    EPOCH_START = "epoch_start"
    DATA_WAIT = "data_wait"
    H2D = "h2d"
    FORWARD = "forward"
    EVALUATION = "evaluation"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    OPTIMIZER_MADE = "optimizer_made"
    SAVE = "save"
    COMPILE = "compile"
    SYNC = "sync"
    """Waits for the device inside the loop."""
    COLLECTIVE = "collective"
    """Calls a collective of torch.distributed."""
    SETUP_SYNC = "setup"
    """Waits for the device before the loop begins."""


class WriteAction(StrEnum):
    """What a program would do to something outside its scratch copy."""

    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    RENAME = "rename"
    CHANGE = "change"
    UPLOAD = "send to"


class SlotKind(StrEnum):
    """What a counter of the data clock counts; `TRACED_*` count fetches traced line by line."""

    FETCH = "fetch"
    SAMPLES = "samples"
    PROCESSOR = "processor"
    REST = "rest"
    COLLATE = "collate"
    TRANSFORM = "transform"
    LINE = "line"
    WORK = "work"
    """Work of a known kind that a library does in a line or transform, in traced fetches."""
    TRACED_FETCH = "traced_fetch"
    TRACED_REST = "traced_rest"
    TRACED_COLLATE = "traced_collate"
    TRACED_TRANSFORM = "traced_transform"


class PlaceKind(StrEnum):
    """How a transform's source line was found, the least certain first."""

    DEFINED = "defined"
    CALLED = "called"
    CONSTRUCTED = "constructed"


class Fact(Record):
    """One line of facts.jsonl; `fact` names its kind there."""

    fact: ClassVar[str]


class ProcessFact(Fact):
    fact = "process"
    booted_ns: int
    torch: str
    cuda: str | None = None
    python: str


class RankFact(Fact):
    """The process is a rank; the last one written holds."""

    fact = "rank"
    rank: int
    world_size: int
    pid: int
    node: int = 0
    """The number of its machine, as launchers count them."""
    program: str | None = None
    """The script it runs."""
    joined: bool = False
    """Whether it has joined its process group."""


class TorchBegunFact(Fact):
    """The program has begun to import torch."""

    fact = "torch_begun"


class EnvironFact(Fact):
    """Environment variables the program changed before it imported torch."""

    fact = "environ"
    changed_before_torch: list[str]


class ImportFact(Fact):
    """An import that took long."""

    fact = "import"
    name: str
    begun_ns: int
    elapsed_ns: float


class SiteFact(Fact):
    """A source line; row `id` of sites.npy counts it."""

    fact = "site"
    id: int
    kind: SiteKind
    wait: HostWait | None = None
    file: str
    line: int
    function: str
    through: str | None = None
    """The library through which the line does it; None: torch."""


class LoaderFact(Fact):
    """A DataLoader's arguments at its first use."""

    fact = "loader"
    id: int = 0
    site: int | None = None
    """Where it was constructed; None: unknown."""
    batch_size: int | None = None
    num_workers: int
    pin_memory: bool | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool | None = None
    drop_last: bool | None = None
    shuffle: bool | None = None
    sampler: str | None = None
    dataset: str | None = None
    samples: int | None = None
    start_method: str | None = None


class WorkersFact(Fact):
    fact = "workers"
    loader: int
    pids: list[int]


class BatchFact(Fact):
    """The largest batch so far."""

    fact = "batch"
    bytes: int


class RootFact(Fact):
    fact = "root"
    id: int
    name: str


class OptimizerMadeFact(Fact):
    fact = "optimizer_made"
    name: str
    site: int


class OptimizerFact(Fact):
    """An optimizer at its first step. A flag it does not have is absent."""

    fact = "optimizer"
    id: int
    name: str
    parameters: int
    groups: int
    lr: float | int | None
    foreach: bool | None = None
    fused: bool | None = None
    capturable: bool | None = None


class ModelConfig(Record):
    """A root model: parameters, dtypes, devices, memory format, wrappers."""

    name: str | None = None
    parameters: int | None = None
    trainable: int | None = None
    dtypes: dict[str, int] | None = None
    devices: list[str]
    memory_format: str | None = None
    convolved_dims: list[int] | None = None
    attends: bool | None = None
    training: bool | None = None
    compiled: bool | None = None
    ddp: bool | None = None


class Switches(Record):
    """torch's global switches."""

    tf32_matmul: str | None = None
    tf32_cudnn: bool | None = None
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    deterministic: bool | None = None
    anomaly_detection: bool = False
    threads: int


class ScalerConfig(Record):
    scales: list[float]
    skipped_updates: int


class Distributed(Record):
    world_size: int
    backend: str
    local_ranks: int | None = None
    """Ranks on this machine, which share its cores. None: unknown."""


class ConfigFact(Fact):
    """The program's settings; the last one written holds."""

    fact = "config"
    models: list[ModelConfig]
    autocast: str | None = None
    switches: Switches
    scaler: ScalerConfig | None = None
    distributed: Distributed | None = None


class FixCheck(Record):
    """What a fix says of the program's objects before anything is tried."""

    name: str
    refused: dict[str, Any] | None = None
    """The `NotApplied` record of why it would not apply; None: it would apply."""
    text: str | None = None
    """Its sentence."""


class FixChecksFact(Fact):
    """What all fixes say; the last one written holds."""

    fact = "fix_checks"
    checks: list[FixCheck]


class CompileFact(Fact):
    """A call of torch.compile; arguments it was not given are absent."""

    fact = "compile"
    site: int
    what: str
    mode: str | None = None
    backend: str | None = None
    dynamic: str | None = None
    fullgraph: str | None = None


class CompileCountersFact(Fact):
    """What Dynamo counted."""

    fact = "compile_counters"
    graphs: int
    calls_captured: int
    graph_breaks: int
    break_reasons: list[str]
    recompiles: int
    frames: int


class WindowFact(Fact):
    """A recorded window: its name and its first and last step."""

    fact = "window"
    name: str
    first: int
    last: int


class HostStack(Record):
    """A stack seen in samples of the observed thread, and the time they represent."""

    phase: str
    """The row log's phase, in lower case."""
    frames: list[list[Any]]
    """The program's lines, outermost first: file, line and function of each."""
    calls: str = ""
    """The library function that the innermost line calls, preferably one of a known kind of work;
    "" if none."""
    work: SampleWork | None = None
    """What that does to make a sample."""
    ns: int


class HostSamplesFact(Fact):
    """Samples of the observed thread in a few steps, taken because phases did not explain them."""

    fact = "host_samples"
    first: int
    last: int
    """First and last sampled step; those between need not be sampled."""
    steps: int
    samples: int
    stacks: list[HostStack]


class MemoryFact(Fact):
    """Peaks so far; the last one written holds. CUDA fields are absent without CUDA."""

    fact = "memory"
    state: dict[str, dict[str, int]]
    """Bytes by kind of device and by what they hold."""
    activations_bytes: int | None
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    retries: int | None = None


class FailedAllocationFact(Fact):
    """A CUDA allocation failed; the program may have recovered."""

    fact = "oom"
    requested_bytes: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    free_bytes: int
    total_bytes: int
    device: int


class ClockFact(Fact):
    """What a slot of a process's data clock means; the last one written for a slot holds."""

    fact = "clock"
    pid: int | str
    slot: int
    what: SlotKind
    name: str | None = None
    file: str | None = None
    line: int | None = None
    place: PlaceKind | None = None
    part: str | None = None
    order: int | None = None
    work: SampleWork | None = None
    loader: str
    loader_file: str | None
    loader_line: int | None
    transforms: list[str]
    worker: int | None


class ProofFact(Fact):
    """What a proof compares besides losses, by step; the last one written holds."""

    fact = "proof"
    grad_norms: list[float | None]
    rates: list[float | None]
    loads: list[int]
    batches: list[Any] | None = None


class TensorState(Record):
    """A tensor or number of a trial's final state, summarised in a few numbers."""

    part: EndPart
    name: str
    digest: int
    """A hash of its bits."""
    count: int
    """How many values it has."""
    integral: bool
    norm: float | None = None
    """None, and no sketch, if a value is infinite or NaN."""
    sketch: list[float] | None = None
    """Sums of its values under pseudo-random signs. In the root mean square, two sketches are about
    as far apart as their tensors."""


class StateFact(Fact):
    """Weights, buffers and optimizer state after the last requested step, or at the end."""

    fact = "state"
    step: int
    tensors: list[TensorState]


class OutputsFact(Fact):
    fact = "outputs"
    file: str
    calls: int


class PerturbedFact(Fact):
    fact = "perturbed"
    model: str
    rounding: str
    parameters: int


class WroteOutsideFact(Fact):
    """A write outside the scratch copy and the program's line behind it; "" if unknown."""

    fact = "wrote_outside"
    path: str
    file: str
    line: int
    action: WriteAction


class OverheadFact(Fact):
    """The observer's own cost, where it has a budget."""

    fact = "overhead"
    budget: float
    """The share of the program's time it may take."""
    clocked_steps: int
    unclocked_steps: int
    clocked_ns: float
    """Extra time of a clocked step over an unclocked one."""
    measured_pairs: int
    """Pairs of blocks behind that; with too few, it comes from the number of hooks."""
    unclocked_ns: float
    """Extra time of an unclocked step over a bare one, from its number of hooks."""


class ContestFact(Fact):
    """A contest between blocks of steps of this process, as it ended."""

    fact = "contest"
    candidate: list[str]
    """The fixes that were switched, as `--fix` takes them."""
    kept: bool
    decided: bool = True
    """Whether it showed a gain or that there is none worth a change; else it took too long."""
    ratio: float
    """The speedup and the range it lies in."""
    low: float
    high: float
    pairs: int
    """Of blocks."""
    steps: int
    seconds: float
    before_ms: float
    after_ms: float


class AutoStop(WordedEnum):
    """Why fixes are no longer tried in a running program."""

    DONE = "done", "everything was tried"
    NOTHING_TO_TRY = "nothing_to_try", "no fix can be switched on here while the program runs"
    TOO_SHORT = "too_short", "the run is too short to pay a contest back"
    COMPILES = "compiles", "the program compiles"
    CAPTURES = "captures", "the program captures CUDA graphs"
    DISTRIBUTED = "distributed", "the program runs on several ranks"
    FIX_FAILED = "fix_failed", "a fix failed"
    NOT_FINITE = "not_finite", "a loss was not finite"
    OUT_OF_TIME = "out_of_time", "its time was over"


class AutoFact(Fact):
    """What contests in place have switched on; the last one written holds."""

    fact = "auto"
    allow: str
    """The least exact kind of fix it may keep."""
    kept: list[str]
    stopped: AutoStop | None = None
    """None: it was still at it."""
    detail: str | None = None
    """The error of a fix that failed."""
    trying: list[str] | None = None
    """The candidate of the contest under way."""
    for_tune: bool = False
    """Whether `tune` asked for the contests, else `--auto`."""


class ProblemFact(Fact, Problem):
    fact = "problem"


class ProgramError(Record):
    """The exception that ended the program."""

    type: str
    text: str
    out_of_memory: bool = False


class EndFact(Fact):
    """The program ended in an orderly way, with or without an exception."""

    fact = "end"
    steps: int
    error: ProgramError | None = None


F = TypeVar("F", bound=Fact)
KINDS: dict[str, type[Fact]] = {kind.fact: kind for kind in Fact.__subclasses__()}


class Facts:
    """A run's facts by kind, in the order they were written."""

    def __init__(self, facts: Iterable[Fact] = (), fixes: Iterable[dict[str, Any]] = ()) -> None:
        self._by_kind: dict[type[Fact], list[Any]] = defaultdict(list)
        for fact in facts:
            self._by_kind[type(fact)].append(fact)
        self.fixes = list(fixes)
        """What fixes reported."""

    def all(self, kind: type[F]) -> list[F]:
        """Every fact of a kind."""
        return self._by_kind[kind]

    def last(self, kind: type[F]) -> F | None:
        """The latest fact of a kind; None where there is none."""
        found = self._by_kind[kind]
        return found[-1] if found else None
