"""What `stepscope compare` found. `Comparison` is the document that `compare --json` prints."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

COMPARISON_SCHEMA = "stepscope.compare/2"
Verdict = Literal["FASTER", "SLOWER", "SAME", "UNCLEAR"]
SettingValue = str | bool | int | float | None


class ResultKind(StrEnum):
    """The kinds of results that can be compared."""

    RUN = "run"
    TRACE = "trace"
    TUNE = "tune"
    BENCH = "bench"


class FloorSource(StrEnum):
    """Where a noise floor comes from."""

    OWN = "own"
    """From the compared processes: three or more on each side."""
    STORED = "stored"
    """Stored in the results: from earlier processes of the program, or from all the results'
    processes."""
    ASSUMED = "assumed"


class SideNames(Struct, frozen=True):
    """The results of one side."""

    kind: ResultKind
    names: tuple[str, ...]


class ItemVerdict(Struct, frozen=True, kw_only=True):
    """The verdict on one pair. `change`, `low` and `high` are shares of the base's time."""

    key: str
    label: str
    verdict: Verdict
    change: float
    low: float
    high: float
    speedup: float
    per: Literal["step", "sample"]
    same_within: float
    base_ms: float
    other_ms: float
    base_samples_per_s: float | None
    other_samples_per_s: float | None
    base_samples: float | None
    other_samples: float | None
    base_processes: int
    other_processes: int
    base_steps: int
    other_steps: int
    noise_floor: float
    noise_floor_from: FloorSource
    noise_floor_processes: int | None
    """How many processes a stored floor was measured on."""
    within_process_variation: float
    """Standard deviation between blocks of steps, as a share, if it raised an assumed floor."""


class PhaseChange(Struct, frozen=True):
    """A phase, or a cause of idle time, on both sides; ms per step and shares of the whole."""

    name: str
    base_ms: float
    other_ms: float
    delta_ms: float
    base_share: float
    other_share: float


class Quantity(StrEnum):
    """What is compared besides time."""

    PEAK_MEMORY = "peak memory"
    RESERVED_MEMORY = "reserved memory"
    ENERGY = "energy per step"
    GPU_BUSY = "GPU busy"
    KERNELS = "kernels per step"


class Unit(StrEnum):
    """The unit of an `AmountChange`."""

    BYTES = "bytes"
    JOULES = "J"
    SHARE = "share"
    COUNT = ""


class AmountChange(Struct, frozen=True):
    """A quantity known for both sides."""

    name: Quantity
    unit: Unit
    base: float
    other: float


class LossState(StrEnum):
    """How far losses agree, best first."""

    IDENTICAL = "identical"
    CLOSE = "close"
    DIFFER = "differ"


class LossComparison(Struct, frozen=True):
    """`step` is the first that differs, counted from 1; `largest` the largest relative difference,
    None if a loss is missing; `control` the state between two runs of one side."""

    state: LossState
    step: int | None
    largest: float | None
    steps: int
    control: LossState | None = None


class SettingPart(StrEnum):
    """What a setting belongs to."""

    PROGRAM = "program"
    LOADER = "loader"
    MODEL = "model"
    OPTIMIZER = "optimizer"
    SWITCH = "switch"
    """A global setting of torch: TF32, cuDNN, autocast, compile …"""
    FIXES = "fixes"
    VARIABLE = "environment variable"
    MACHINE = "machine"
    """Hardware, driver and software versions."""


class Setting(Struct, frozen=True):
    """Names a setting: `key` of the part's `index`-th instance, counted from 0."""

    part: SettingPart
    key: str
    index: int = 0
    owner: str = ""
    """The model's class name."""


class SettingDifference(Setting, frozen=True, kw_only=True):
    """A setting with two values; None if a side lacks it."""

    base: SettingValue
    other: SettingValue


class WorkUnit(StrEnum):
    """What a recorded step is counted in: kernels, or operators without a device."""

    KERNELS = "kernels"
    OPERATORS = "operators"


class WorkState(StrEnum):
    """What became of a kernel or operator."""

    NEW = "new"
    GONE = "gone"
    MORE = "more"
    FEWER = "fewer"
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"


class KernelRow(Struct):
    """All work of one name, operator, phase and line; times in ms per step.

    `delta_ms` is `new_ms` − `gone_ms` + the change of those in both steps.
    """

    name: str
    operator: str | None
    phase: str
    line: str | None
    base_count: int = 0
    other_count: int = 0
    new: int = 0
    gone: int = 0
    base_ms: float = 0.0
    other_ms: float = 0.0
    new_ms: float = 0.0
    gone_ms: float = 0.0
    delta_ms: float = 0.0
    change: WorkState = WorkState.SAME


class KernelComparison(Struct, frozen=True):
    """A typical recorded step of each side, kernel by kernel; the deltas of all rows add up."""

    unit: WorkUnit
    base_count: int
    other_count: int
    base_ms: float
    other_ms: float
    delta_ms: float
    new: int
    gone: int
    rows: tuple[KernelRow, ...]


class CallSite(Struct, frozen=True):
    """A function of the user's code and where it begins: recordings do not name the line of a
    call."""

    function: str
    file: str
    line: int


class WorkChange(Struct, frozen=True):
    """What changed in the work of one operator in one phase."""

    phase: str
    operator: str
    unit: WorkUnit
    delta_ms: float
    new: int
    gone: int
    count: int
    """Calls or kernels on the other side."""
    place: CallSite | None


class Cause(Struct, frozen=True):
    """A phase that changed and what explains it. `phase` is "idle" if the device waited."""

    phase: str
    delta_ms: float
    settings: tuple[SettingDifference, ...] = ()
    work: WorkChange | None = None
    idle_cause: str | None = None

    @property
    def explained(self) -> bool:
        """Whether a reason was found."""
        return bool(self.settings or self.work or self.idle_cause)


class NoteKind(StrEnum):
    """A reason to trust a comparison less."""

    WHOLE_RECORDING = "no steps in the recording"
    PHASES_BY_DIFFERENT_CLOCKS = "phases by different clocks"
    THROTTLED = "throttled"
    GPU_SHARED = "GPU shared"
    HOST_BUSY = "host busy"


class Note(Struct, frozen=True):
    """`names` are the results it applies to; `reason` is the driver's reason for throttling."""

    kind: NoteKind
    names: tuple[str, ...] = ()
    reason: str = ""


class Comparison(Struct, frozen=True, kw_only=True):
    """One side against another. The fields from `verdict` to `label` are the decisive item's."""

    schema: str = COMPARISON_SCHEMA
    base: SideNames
    other: SideNames
    verdict: Verdict
    change: float
    low: float
    high: float
    per: Literal["step", "sample"]
    label: str
    max_regression: float | None
    strict: bool
    exit_code: int
    items: tuple[ItemVerdict, ...]
    left_out: tuple[str, ...]
    """Labels of items on one side only."""
    phases: tuple[PhaseChange, ...]
    scale: float
    """Factor that scales the other's steps to the base's samples per step."""
    kernels: KernelComparison | None
    idle: tuple[PhaseChange, ...]
    amounts: tuple[AmountChange, ...]
    configuration: tuple[SettingDifference, ...]
    environment: tuple[SettingDifference, ...]
    environment_same: tuple[str, ...]
    losses: LossComparison | None
    why: tuple[Cause, ...]
    notes: tuple[Note, ...]

    @property
    def decisive(self) -> ItemVerdict:
        """The item that decides the overall verdict."""
        return decisive_item(self.items)


def decisive_item(items: tuple[ItemVerdict, ...]) -> ItemVerdict:
    """The slowest of the slower items, else the worst unclear one, else the fastest."""
    order: tuple[Verdict, ...] = ("SLOWER", "UNCLEAR", "FASTER", "SAME")
    found = min((item.verdict for item in items), key=order.index)
    far = min if found == "FASTER" else max
    return far((item for item in items if item.verdict == found), key=lambda item: item.change)
