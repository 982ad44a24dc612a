"""A run as one document: what `show --json` prints, and what rules and reports read."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from stepscope.analyze.run.data_pipeline import PipelineSource
from stepscope.analyze.run.host_code import HostCode, OtherTime
from stepscope.analyze.timeline.document import StepOutlier, TraceAnalysis
from stepscope.analyze.timeline.host import PythonLine
from stepscope.analyze.timeline.idle import IdlePlace
from stepscope.analyze.timeline.kernels import WorkGroup
from stepscope.record.facts import (
    AutoStop,
    CompileCountersFact,
    CompileFact,
    Distributed,
    LoaderFact,
    ModelConfig,
    OptimizerFact,
    ProgramError,
    ScalerConfig,
    SiteKind,
    Switches,
    WindowFact,
)
from stepscope.record.fields import Record
from stepscope.record.finding import Answer, Finding, Headroom, Place
from stepscope.record.fix import FixKind, FixState
from stepscope.record.kinds import HostWait, IdleCause, ThrottleReason
from stepscope.record.run import DeviceSwitch, RunHeader
from stepscope.stats.verdict import Verdict
from stepscope.store.memory_lines import MemoryLines

SHOW_SCHEMA = "stepscope.show/2"
_S = TypeVar("_S", bound=Struct)


class OutOfMemory(Record):
    """The allocation that failed; only the device is known where the kernel killed the program."""

    device: str
    requested_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None


class ObservedRun(RunHeader):
    """What ran, where it lies and how it ended."""

    folder: str
    device: str | None = None  # cuda or cpu; None where no model was seen
    window: int | None = None  # steps to be recorded at kernel level
    complete: bool = False  # the program ended in an orderly way
    under_way: bool = False
    error: ProgramError | None = None
    out_of_memory: OutOfMemory | None = None
    problems: list[str] | None = None
    script: str | None = None  # what its ranks run; absent for a program of one process
    recording_stopped: str | None = None  # why stepscope stopped observing; absent where it did not


class OptimizerSteps(Struct, frozen=True):
    """How often an optimizer stepped."""

    name: str
    count: int


class RunSteps(Struct, frozen=True):
    """All steps; times are of the measured ones, None where there are none."""

    count: int
    what: str  # training, inference, batches or nothing
    inferred: bool
    mean_ms: float | None
    median_ms: float | None
    p95_ms: float | None
    std_ms: float | None
    samples_per_s: float | None
    samples_per_step: float | None
    batch_bytes: int | None
    warmup_steps: int
    window_steps: int
    measured_steps: int
    by_optimizer: list[OptimizerSteps]
    spikes: list[StepOutlier]
    spike_count: int
    drift: float | None
    evaluations: int | None = None
    """How often evaluating began. None: not counted, in earlier versions."""
    clocked_steps: int | None = None
    """Measured steps whose phases were clocked; the others' are estimated. None: all, as earlier
    versions had it."""


class Overhead(Struct, frozen=True):
    """What observing cost, by its own account."""

    budget: float  # the share of the program's time it may take
    share: float | None  # … and took of the steps; None without any
    clocked_us: float  # what a clocked step takes longer than an unclocked one
    unclocked_us: float  # what that one takes longer than a bare one
    measured: int  # comparisons behind `clocked_us`; with few it is expected, not measured


class CategoryPlace(Record):
    """What is behind a category of the run: a source line, or for imports the slowest module."""

    file: str | None = None
    line: int | None = None
    module: str | None = None
    seconds: float = 0.0
    library: str | None = None  # of imports: the slowest that is not torch's
    libraries_s: float = 0.0  # of imports: all that are not torch's


class GpuTotals(Struct, frozen=True):
    """The GPU during the measured steps; None where not sampled."""

    name: str | None
    busy_fraction: float | None
    utilization_percent: float | None
    peak_allocated_bytes: int
    peak_reserved_bytes: int | None
    total_bytes: int | None
    allocator_retries: int | None
    energy_j: float | None
    energy_j_per_step: float | None
    power_w: float | None
    sm_mhz: float | None
    temperature_c: float | None
    throttled_by: list[ThrottleReason]
    other_processes: float | None
    kernels_per_step: float | None


class HostTotals(Struct, frozen=True):
    """CPU, RAM and disk traffic of the program and its workers."""

    cpu_percent: float | None  # of one core
    peak_rss_bytes: float | None
    processes: float | None
    read_bytes: float | None
    write_bytes: float | None
    other_cpu_percent: float | None = None
    """What other processes used of the cores the program may use, % of one core, as steps ran."""


class MemoryTotals(Struct, frozen=True):
    """The peak and what it is made of, in bytes; `lines` as `--memory` recorded them."""

    device: str
    peak_bytes: float | None
    owners: dict[str, int | None]
    lines: MemoryLines | None = None


class Loader(LoaderFact):
    """A DataLoader's arguments and the line that made it."""

    file: str | None = None
    line: int | None = None


class SyncSite(Struct, frozen=True):
    """A line where the host waits for the device."""

    what: HostWait | None
    count: int
    lost_ms: float
    bytes: int | None
    file: str
    line: int


class HotSite(Struct, frozen=True):
    """A line that a phase begins at."""

    what: SiteKind
    file: str
    line: int
    function: str
    count: int
    total_ms: float


class ProgramConfig(Record):
    """What the program is set to; models to distributed are absent where it never took a step."""

    models: Sequence[ModelConfig] = ()
    autocast: str | None = None
    switches: Switches | None = None
    scaler: ScalerConfig | None = None
    distributed: Distributed | None = None
    optimizers: Sequence[OptimizerFact] = ()
    compile: Sequence[CompileFact] = ()
    roots: Sequence[str] = ()
    environment: Mapping[str, str]
    machine: Mapping[str, Any]
    device_switch: DeviceSwitch | None = None
    """None: not found, or there is no GPU."""

    @property
    def usable_cores(self) -> float:
        """A rank's share of the machine's, 0 if unknown."""
        ranks = (self.distributed.local_ranks if self.distributed else None) or 1
        return float((self.machine.get("cpu") or {}).get("usable_cores") or 0) / ranks


class WorkWithStacks(Struct, frozen=True):
    """The device's work by what only stacks tell."""

    module: list[WorkGroup]
    line: list[WorkGroup]


class PythonLines(Struct, frozen=True):
    """The user's functions on the host."""

    lines: list[PythonLine] = []


class StackLines(Struct, frozen=True):
    """What only the window recorded with stacks tells; recording them distorts its times.

    The last two are empty in a window.json that an earlier version kept.
    """

    steps: int
    by: WorkWithStacks
    host: PythonLines = PythonLines()
    idle_places: dict[IdleCause, list[IdlePlace]] = {}


class Sink(Struct, frozen=True):
    """A large phase of the step."""

    phase: str
    title: str
    ms: float
    share: float
    file: str | None = None
    line: int | None = None
    detail: str | None = None


class FixReport(Struct, frozen=True):
    """What became of a fix: sentences, and the records (`record.fix`) they are made of."""

    name: str
    value: int | str | None
    state: FixState
    kind: FixKind | None
    where: list[str]
    reasons: list[str]
    applied: list[dict[str, Any]]
    not_applied: list[dict[str, Any]]
    broke: dict[str, Any] | None


class FixAnswer(Struct, frozen=True):
    """What a fix said of the program's own objects as they trained."""

    name: str
    refused: dict[str, Any] | None = None
    """The record of why it would not apply (`record.fix`); None: nothing speaks against it."""
    text: str | None = None
    """The sentence of that."""


class SpeedupRange(Struct, frozen=True):
    """A speedup and the range it lies in."""

    speedup: float
    low: float
    high: float


class FixEffect(Struct, frozen=True):
    """What a run's fixes brought, against the newest comparable run without them."""

    fixes: list[str]
    """As `--fix` takes them: those that took effect and the other run does not have."""
    against: str
    """The other run's id."""
    before_ms: float
    after_ms: float
    before_samples_per_s: float | None
    after_samples_per_s: float | None
    by_samples: bool
    """Whether steps hold other numbers of samples: then samples per second are compared."""
    measured: SpeedupRange
    verdict: Verdict
    predicted: SpeedupRange | None
    """What the other run promised of them; None: nothing."""


class InPlaceContest(Struct, frozen=True):
    """Blocks of steps with a candidate against blocks without it."""

    candidate: list[str]
    """As `--fix` takes them."""
    kept: bool
    ratio: float
    """The speedup, and the range it lies in."""
    low: float
    high: float
    pairs: int
    steps: int
    seconds: float
    before_ms: float
    after_ms: float
    decided: bool = True
    """False: it took too long."""
    in_place: bool = True
    """Whether both sides ran in one process."""


class AutoRun(Struct, frozen=True):
    """What was tried and kept as the program ran."""

    allow: FixKind
    kept: list[str]
    before_ms: float | None
    """A step without what was kept, by the contests' ratios, and with it, as it was in the last of
    them; None without any."""
    after_ms: float | None
    contests: list[InPlaceContest]
    stopped: AutoStop | None
    """None: the program ended first."""
    detail: str | None = None
    for_tune: bool = False
    """Whether `tune` asked for it, else `--auto`."""


class RankState(StrEnum):
    """How a rank ended, or how far it came."""

    ENDED = "ended"
    FAILED = "failed"  # in an exception
    KILLED = "killed"  # without a word, as by a signal
    RUNNING = "running"
    MISSING = "missing"  # never started
    UNREADABLE = "unreadable"  # its folder is damaged


class LastMeeting(Struct, frozen=True):
    """Where a rank stood that never left its last meeting with the others."""

    kind: str
    file: str | None = None
    line: int | None = None


class RankTimes(Struct, frozen=True):
    """One rank; times are of its measured steps, None where there are none."""

    rank: int
    node: int
    state: RankState
    steps: int
    step_ms: float | None = None
    phases_ms: dict[str, float] = {}
    work_ms: float | None = None
    """Of the step, what is neither of the next two nor waiting for data."""
    exposed_communication_ms: float | None = None
    """Exchanging data after the last rank had come. None: it met no other rank."""
    waiting_for_others_ms: float | None = None
    """From its own arrival to that of the last rank."""
    restarts: int = 0
    error: ProgramError | None = None
    stood_in: LastMeeting | None = None


class StragglerCause(StrEnum):
    """What takes the late rank longer than the others."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    HOST = "host"


class Straggler(Struct, frozen=True):
    """The rank the others wait for."""

    rank: int
    cause: StragglerCause
    place: Place | None
    since_step: int
    late_ms: float
    """By how much its own work in a step exceeds that of the next slowest rank."""
    extra_ms: float
    """How much longer the cause takes there than on the other ranks."""


class Collectives(Struct, frozen=True):
    """All meetings of one kind, in the measured steps of the ranks that took part."""

    kind: str
    count: int
    per_step: float
    bytes: int | None
    """Of each; None: not known."""
    time_ms: float | None
    """From the last rank's arrival until a rank left, on average. None: they were only begun."""
    spread_ms: float | None
    """From the first rank's arrival to the last one's, on average."""
    most_spread_ms: float | None


class RunSummary(Struct, frozen=True):
    """Everything a run folder tells. None where something was not seen or not recorded."""

    schema: str
    run: ObservedRun
    steps: RunSteps
    account_s: dict[str, float]  # seconds from launch to end by category
    losses: list[float | None]
    gpu: GpuTotals | None
    phases_ms: dict[str, float]
    phases_seen_by: str  # host or device: whose clock `phases_ms` are by
    phases_host_ms: dict[str, float] | None
    phases_device_ms: dict[str, float] | None
    host: HostTotals | None
    memory: MemoryTotals
    loaders: list[Loader]
    pipeline: list[PipelineSource]
    syncs: list[SyncSite]
    sites: list[HotSite]
    account_places: dict[str, CategoryPlace]
    config: ProgramConfig
    compile: CompileCountersFact | None
    windows: list[WindowFact]
    timeline: TraceAnalysis | None
    timeline_stacks: StackLines | None
    sinks: list[Sink]
    host_code: HostCode | None
    fixes: list[FixReport]
    problems: list[str]
    overhead: Overhead | None = None
    fix_checks: list[FixAnswer] = []  # empty where fixes were not asked
    other_time: OtherTime | None = None  # None where the time in no phase was not sampled
    auto: AutoRun | None = None  # None without `--auto`
    fix_effect: FixEffect | None = None  # None where there is nothing to compare with
    findings: list[Finding] = []
    minor: list[Finding] = []
    healthy: list[Finding] = []
    headroom: Headroom | None = None
    baseline: list[Answer] = []
    ranks: list[RankTimes] = []  # empty for a program of one process
    straggler: Straggler | None = None
    collectives: list[Collectives] = []
    same_data: bool | None = None
    """Whether all ranks of a DDP model read the same batches. None: not known."""


def to_json(document: Struct) -> Any:
    """A document as plain data."""
    return msgspec.to_builtins(document, str_keys=True, enc_hook=_plain)


def from_json(document: object, kind: type[_S]) -> _S:
    """A document from plain data. Raises msgspec.ValidationError."""
    try:
        return msgspec.convert(document, kind, str_keys=True, dec_hook=_record)
    except UnicodeError:
        raise msgspec.ValidationError("Half a character in a text") from None


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    raise NotImplementedError(type(value))


def _record(kind: type[Any], data: Any) -> Any:
    if issubclass(kind, Record):
        return kind.from_json(data)
    raise NotImplementedError(kind)
