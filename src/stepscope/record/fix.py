"""What a fix did to a program: typed records, written as `fix` facts in the program's own process
and read back from run folders, journals and JSON documents.

Decisions read these fields; sentences are made of them last, in `record.fix_words`. Plain
dataclasses, since the user's program imports this: importing msgspec would take as long again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self


class FixKind(StrEnum):
    """What a fix may change: nothing, rounding and random draws, or training itself."""

    EXACT = "exact"
    NUMERIC = "numeric"
    SEMANTIC = "semantic"


class TrainingChange(StrEnum):
    """What a semantic fix changes in training."""

    BATCH_SIZE = "batch_size"
    FEWER_UPDATES = "fewer_updates"
    SAMPLES_LEFT_OUT = "samples_left_out"


class FixState(StrEnum):
    """What became of a fix that was asked for."""

    APPLIED = "applied"
    NOT_APPLICABLE = "not applicable"
    BROKE = "broke"


class Target(StrEnum):
    """What a fix took effect on."""

    LOADER = "loader"
    LOADER_WORKERS = "loader_workers"
    SAMPLES = "samples"
    SAMPLES_THAT_FIT = "samples_that_fit"
    COPY = "copy"
    SYNCHRONIZE = "synchronize"
    ITEM = "item"
    MODEL = "model"
    AUTOCAST = "autocast"
    TF32 = "tf32"
    TF32_SETTING = "tf32_setting"
    CONVOLUTIONS = "convolutions"
    BLOCKS = "blocks"
    OWN_LAYERS = "own_layers"
    GRAPH = "graph"
    GRAPHED_STEP = "graphed_step"
    OPTIMIZER = "optimizer"
    GATHERED_STEPS = "gathered_steps"
    THREADS = "threads"
    THREADS_SETTING = "threads_setting"
    CORES = "cores"
    ALLOCATOR = "allocator"
    FUSED_KEPT_ON = "fused_kept_on"
    FUSED_ALLOWED = "fused_allowed"
    ATTENTION_IMPLEMENTATION = "attention_implementation"
    ATTENTION = "attention"
    OTHER = "other"
    """In words only: of a fix from another package, or of a run before records were typed."""


class DataChange(StrEnum):
    """What batches may have otherwise."""

    DRAWS = "draws"
    ORDER = "order"
    SAMPLES = "samples"
    SHUFFLES = "shuffles"
    ROUNDING = "rounding"


class TraitKind(StrEnum):
    """What code that makes samples was seen to do."""

    USES = "uses"
    HOLDS = "holds"
    RUNS = "runs"
    SETS = "sets"
    ITERATES = "iterates"
    OPEN_FILE = "open_file"
    NAMES_GPU = "names_gpu"
    HOLDS_GPU_TENSORS = "holds_gpu_tensors"
    MOVES_TO_GPU = "moves_to_gpu"
    ASKS_WORKER = "asks_worker"
    SAMPLER_SHARES_GENERATOR = "sampler_shares_generator"
    SAMPLER_MAY_DRAW = "sampler_may_draw"
    EPOCH_LEFT_EARLY = "epoch_left_early"
    UNKNOWN_NAME = "unknown_name"
    UNKNOWN_CLASS = "unknown_class"
    TOO_LARGE = "too_large"
    TOO_MUCH_CODE = "too_much_code"
    UNREADABLE = "unreadable"


class Reason(StrEnum):
    """Why a fix did not apply to something, or why the program could not go on with it."""

    OTHER = "other"
    """In words only, as `Target.OTHER`."""
    NOTHING_FOUND = "nothing_found"
    INSTALL_FAILED = "install_failed"
    NO_TORCH = "no_torch"
    NO_CUDA = "no_cuda"
    # processors
    NO_AFFINITY = "no_affinity"
    ONE_NUMA_NODE = "one_numa_node"
    GPU_NODE_UNKNOWN = "gpu_node_unknown"
    CORES_NOT_ALLOWED = "cores_not_allowed"
    ON_NODE_ALREADY = "on_node_already"
    THREADS_ALREADY = "threads_already"
    # loaders
    OWN_BATCH_SAMPLER = "own_batch_sampler"
    NOT_BATCHED = "not_batched"
    BATCH_SIZE_ALREADY = "batch_size_already"
    SINGLE_SAMPLES = "single_samples"
    EPOCH_TOO_SMALL = "epoch_too_small"
    FIXED_BATCH_SIZE = "fixed_batch_size"
    OUT_OF_MEMORY = "out_of_memory"
    FREE_MEMORY_UNKNOWN = "free_memory_unknown"
    HAS_WORKERS = "has_workers"
    HAS_NO_WORKERS = "has_no_workers"
    WORKERS_ALREADY = "workers_already"
    KEEPS_WORKERS = "keeps_workers"
    ITERABLE_DATASET = "iterable_dataset"
    IN_MEMORY = "in_memory"
    SAMPLES_VARY = "samples_vary"
    UNCOPYABLE = "uncopyable"
    CUDA_IN_DATASET = "cuda_in_dataset"
    CUDA_IN_WORKERS = "cuda_in_workers"
    OPEN_HANDLE = "open_handle"
    EACH_WORKER_ALL_DATA = "each_worker_all_data"
    DATASET_CHANGED = "dataset_changed"
    GPU_IN_WORKER = "gpu_in_worker"
    SHARED_MEMORY_FULL = "shared_memory_full"
    WORKER_KILLED = "worker_killed"
    TOO_MANY_FILES = "too_many_files"
    NESTED_PROCESSES = "nested_processes"
    NO_MAIN_GUARD = "no_main_guard"
    UNPICKLABLE = "unpicklable"
    CHANGED_IN_PLACE = "changed_in_place"
    UNPINNABLE = "unpinnable"
    BATCHES_SHARE_MEMORY = "batches_share_memory"
    COPY_FAILED = "copy_failed"
    ITERABLE_IN_PROCESS = "iterable_in_process"
    NO_USE_COUNT = "no_use_count"
    SHARING_STRATEGY = "sharing_strategy"
    START_METHOD = "start_method"
    # waiting
    COPY_TO_HOST = "copy_to_host"
    PINNED_REFILLED = "pinned_refilled"
    PINNED_IN_NUMPY = "pinned_in_numpy"
    STREAM_MADE = "stream_made"
    STREAM_USED = "stream_used"
    DEVICE_ASKED = "device_asked"
    OTHER_CUDA_LIBRARY = "other_cuda_library"
    SOURCE_UNREADABLE = "source_unreadable"
    VALUE_NEEDED_NOW = "value_needed_now"
    VALUE_SHARED = "value_shared"
    VALUE_RETURNED = "value_returned"
    VALUE_HANDED_ON = "value_handed_on"
    VALUE_IN_CLASS = "value_in_class"
    # arithmetic
    NOT_ON_CUDA = "not_on_cuda"
    NO_TF32 = "no_tf32"
    NO_CONVOLUTIONS = "no_convolutions"
    NO_CUDA_CONVOLUTIONS = "no_cuda_convolutions"
    TURNED_OFF = "turned_off"
    DETERMINISTIC = "deterministic"
    MANY_SHAPES = "many_shapes"
    OWN_AUTOCAST = "own_autocast"
    OWN_GRAD_SCALER = "own_grad_scaler"
    HALF_ALREADY = "half_already"
    NO_FLOAT32 = "no_float32"
    RECURRENT_ON_CPU = "recurrent_on_cpu"
    FP16_IN_GRAPH = "fp16_in_graph"
    CLOSURE_OPTIMIZER = "closure_optimizer"
    OVERFLOWS = "overflows"
    NOT_IN_HALF = "not_in_half"
    WEIGHTS_ASKED_FOR = "weights_asked_for"
    WEIGHTS_RETURNED = "weights_returned"
    WEIGHTS_MAY_BE_USED = "weights_may_be_used"
    NO_OTHER_ATTENTION = "no_other_attention"
    WRITTEN_BY_HAND = "written_by_hand"
    SECOND_DERIVATIVES = "second_derivatives"
    NEEDS_CONTIGUOUS = "needs_contiguous"
    # models
    TORCHSCRIPT = "torchscript"
    DATA_PARALLEL = "data_parallel"
    PROGRAM_COMPILES = "program_compiles"
    NO_CPP_COMPILER = "no_cpp_compiler"
    NO_TRITON = "no_triton"
    NO_C_COMPILER = "no_c_compiler"
    GRAPH_MEMORY_REUSED = "graph_memory_reused"
    COMPILER_FAILED = "compiler_failed"
    NOT_ON_GPU = "not_on_gpu"
    SEVERAL_GPUS = "several_gpus"
    SEVERAL_PROCESSES = "several_processes"
    CHECKPOINTED = "checkpointed"
    HOOKS = "hooks"
    PARAMETER_HOOKS = "parameter_hooks"
    RECURRENT = "recurrent"
    BUFFER_GRADIENTS = "buffer_gradients"
    STRANGE_INPUT = "strange_input"
    STRANGE_OUTPUT = "strange_output"
    NO_GRADIENT = "no_gradient"
    CHANGES_ATTRIBUTE = "changes_attribute"
    KEEPS_CHANGING = "keeps_changing"
    HOST_RANDOM = "host_random"
    WAITS_FOR_GPU = "waits_for_gpu"
    CAPTURE_FAILED = "capture_failed"
    CAPTURE_LEFT_OPEN = "capture_left_open"
    HIDDEN_PARAMETERS = "hidden_parameters"
    SINGLE_GRADIENTS = "single_gradients"
    BACKWARD_TWICE = "backward_twice"
    UNUSED_OUTPUT = "unused_output"
    GRAPH_DERIVATIVES = "graph_derivatives"
    NO_REPEATED_BLOCKS = "no_repeated_blocks"
    CHECKPOINTING_ALREADY = "checkpointing_already"
    RECOMPUTED_DIFFERENTLY = "recomputed_differently"
    # optimizers
    STEP_NOT_CAPTURED = "step_not_captured"
    STEP_NEEDS_FUSED = "step_needs_fused"
    STEP_CAPTURE_FAILED = "step_capture_failed"
    STEP_CHANGES = "step_changes"
    NOT_TORCHS_STEP = "not_torchs_step"
    NO_SUCH_VERSION = "no_such_version"
    PROGRAM_SETS_FLAG = "program_sets_flag"
    DIFFERENTIABLE = "differentiable"
    TORCH_CHOOSES = "torch_chooses"
    TENSOR_LEARNING_RATE = "tensor_learning_rate"
    NOT_PLAIN_PARAMETER = "not_plain_parameter"
    NOT_FLOATING = "not_floating"
    NO_KERNEL = "no_kernel"
    SPARSE_GRADIENTS = "sparse_gradients"
    OTHER_LAYOUT = "other_layout"
    CLEARS_GRADIENTS = "clears_gradients"
    SEVERAL_OPTIMIZERS = "several_optimizers"
    LBFGS = "lbfgs"
    # memory
    PROGRAM_SETS_VARIABLE = "program_sets_variable"


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of the user's code, as the user names the file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class _Record:
    """As JSON, without the fields at their default, and back."""

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                found[field.name] = _plain(value)
        return found

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        known = {field.name for field in fields(cls)}
        return cls(
            **{
                name: _TYPES[name](value) if name in _TYPES and value is not None else value
                for name, value in data.items()
                if name in known
            }
        )


@dataclass(frozen=True, slots=True)
class Trait(_Record):
    """Something seen in the code of a dataset, collate function or sampler."""

    what: TraitKind
    code: str | None = None
    """A name as it is written there, a class, or a library."""
    place: SourceLine | None = None
    file: str | None = None
    """Where only the file is known."""
    because: "Trait | None" = None


@dataclass(frozen=True, slots=True)
class Variation(_Record):
    """What batches have otherwise, and why."""

    data: DataChange
    certain: bool = True
    """Whether that is sure rather than possible."""
    because: Trait | None = None


@dataclass(frozen=True, slots=True)
class Applied(_Record):
    """A fix took effect."""

    target: Target
    object: str | None = None
    """The class of what it took effect on, qualified."""
    place: SourceLine | None = None
    """None also for records in words only."""
    before: int | str | None = None
    after: int | str | None = None
    count: int | None = None
    total: int | None = None
    dtype: str | None = None
    """bf16 or fp16."""
    device: str | None = None
    varies: Variation | None = None
    """None: batches stay as they are, or it is not known (`Target.OTHER`)."""
    overrides: SourceLine | None = None
    """The program's own setting that it overrides."""
    of_torch_nn: bool = False
    """The class is one of torch.nn, which `model.compile()` would leave alone."""
    remark: bool = False
    """Whether there is something to know about it: depends on the target."""
    detail: str | None = None
    kind: FixKind | None = None


@dataclass(frozen=True, slots=True)
class NotApplied(_Record):
    """A fix did not apply to something, or to anything, or no longer does."""

    reason: Reason
    target: Target | None = None
    object: str | None = None
    place: SourceLine | None = None
    value: int | str | None = None
    code: str | None = None
    """Code of the program, a name in it, or a library."""
    trait: Trait | None = None
    varies: Variation | None = None
    raised: SourceLine | None = None
    """The line whose exception it is, where `place` is another."""
    error: str | None = None
    """What somebody else's exception says: shown, never read."""
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Broke(NotApplied):
    """A fix took effect, and then the program could not go on."""


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """How to write a fix into the program."""

    words: str
    """What to do, in a sentence."""
    line: str | None = None
    """The line it was asked for, changed; None where another place is to be changed."""
    before: tuple[str, ...] = ()
    """Lines to put before it, at its indentation."""


@dataclass(frozen=True, slots=True)
class FixOutcome:
    """What became of one fix that was asked for."""

    name: str
    value: int | str | None
    state: FixState
    kind: FixKind | None = None
    """The least exact kind it turned out to be of; None where it did not apply."""
    applied: tuple[Applied, ...] = ()
    not_applied: tuple[NotApplied, ...] = ()
    broke: Broke | None = None

    @property
    def reason(self) -> Reason | None:
        """Why the program broke, or why the fix did not apply; None where it did."""
        if self.state == FixState.APPLIED:
            return None
        return (self.broke or self.not_applied[0]).reason

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """From a JSON document; one from before records were typed gives words without a place."""
        state = FixState(data.get("state", FixState.APPLIED))
        kind = None if data.get("kind") is None else FixKind(data["kind"])
        if "applied" in data:
            refused = [NotApplied.from_json(one) for one in data["not_applied"]]
            broke = None if data["broke"] is None else Broke.from_json(data["broke"])
            applied = [Applied.from_json(one) for one in data["applied"]]
        else:
            texts = list(data.get("reasons") or ())
            last = [texts.pop()] if state == FixState.BROKE and texts else []
            applied = [
                Applied(Target.OTHER, detail=text, kind=kind) for text in data.get("where") or ()
            ]
            refused = [NotApplied(Reason.OTHER, detail=text) for text in texts]
            broke = Broke(Reason.OTHER, detail=last[0]) if last else None
        return cls(
            data["name"], data.get("value"), state, kind, tuple(applied), tuple(refused), broke
        )


def fix_outcomes(facts: Iterable[Any], asked: Iterable[str] = ()) -> list[FixOutcome]:
    """One per fix, in the order they were installed; `asked` is what the run was given.

    Facts of older runs have a sentence only: their records have no place.
    """
    requested: dict[str, Mapping[str, Any]] = {}
    records: dict[str, list[Applied | NotApplied]] = {}
    for fact in facts:
        name = fact["name"]
        if fact["state"] == "asked":
            requested[name] = fact
            records[name] = []
        else:
            records[name].append(_record(fact))
    found = [_outcome(fact, records[name]) for name, fact in requested.items()]
    for text in asked:
        name, _, value = text.partition("=")
        if name not in requested:
            reasons = (NotApplied(Reason.NO_TORCH),)
            found.append(
                FixOutcome(name, value or None, FixState.NOT_APPLICABLE, not_applied=reasons)
            )
    return found


def fact_state(record: Applied | NotApplied) -> FixState:
    """What a record says of its fix."""
    if isinstance(record, Applied):
        return FixState.APPLIED
    return FixState.BROKE if isinstance(record, Broke) else FixState.NOT_APPLICABLE


def _record(fact: Mapping[str, Any]) -> Applied | NotApplied:
    state, data = FixState(fact["state"]), fact.get("record")
    if state == FixState.APPLIED:
        data = data or {"target": "other", "detail": fact["text"], "kind": fact["kind"]}
        return Applied.from_json(data)
    data = data or {"reason": "other", "detail": fact["text"]}
    return (Broke if state == FixState.BROKE else NotApplied).from_json(data)


def _outcome(fact: Mapping[str, Any], records: list[Applied | NotApplied]) -> FixOutcome:
    applied = tuple(one for one in records if isinstance(one, Applied))
    broke = [one for one in records if isinstance(one, Broke)]
    refused = [one for one in records if type(one) is NotApplied]
    if not (applied or broke or refused):
        refused = [NotApplied(Reason.NOTHING_FOUND, detail=fact["text"])]
    return FixOutcome(
        fact["name"],
        fact["value"],
        max(map(fact_state, records), key=_STATES.index, default=FixState.NOT_APPLICABLE),
        max((one.kind for one in applied if one.kind), key=[*FixKind].index, default=None),
        applied,
        tuple(refused),
        broke[-1] if broke else None,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, SourceLine):
        return {"file": value.file, "line": value.line}
    return value.to_json() if isinstance(value, _Record) else value


def _source_line(data: Mapping[str, Any]) -> SourceLine:
    return SourceLine(data["file"], data["line"])


_STATES = (FixState.NOT_APPLICABLE, FixState.APPLIED, FixState.BROKE)
_TYPES: dict[str, Any] = {
    "target": Target,
    "reason": Reason,
    "place": _source_line,
    "overrides": _source_line,
    "raised": _source_line,
    "varies": Variation.from_json,
    "data": DataChange,
    "kind": FixKind,
    "what": TraitKind,
    "because": Trait.from_json,
    "trait": Trait.from_json,
}
"""How fields are read back from JSON; those not listed are taken as they are."""
