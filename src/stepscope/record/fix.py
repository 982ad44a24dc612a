"""What a fix did to a program: typed records, written as `fix` facts in the program's own process
and read back from run folders, journals and JSON documents.

Decisions read these fields. A fix declares the targets and reasons it reports, each with its
sentence, in its own module; shared ones are at the end of this module. JSON keeps ids, fields and
the finished sentence, so that a process that never imported the fix reads all of it. Plain
dataclasses, since the user's program imports this: importing msgspec would take as long again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Self

from stepscope.record.kinds import WordedEnum


class FixKind(StrEnum):
    """What a fix may change: nothing, rounding and random draws, or training itself."""

    EXACT = "exact"
    NUMERIC = "numeric"
    SEMANTIC = "semantic"


class Switch(StrEnum):
    """When a fix can be switched on and off."""

    AT_STEP = "at_step"
    """Between any two steps of a running program; off, everything is as it was."""
    AT_START = "at_start"
    """Only before the program starts."""


class TrainingChange(StrEnum):
    """What a semantic fix changes in training."""

    BATCH_SIZE = "batch_size"
    FEWER_UPDATES = "fewer_updates"
    SAMPLES_LEFT_OUT = "samples_left_out"


class FixState(StrEnum):
    """What became of a requested fix."""

    APPLIED = "applied"
    NOT_APPLICABLE = "not applicable"
    BROKE = "broke"


@dataclass(frozen=True, slots=True)
class Target:
    """What a fix took effect on. Its id alone identifies it."""

    id: str
    words: str = field(default="", compare=False)
    """The sentence, as a template: see `record.fix_words.sentence` for its fields."""
    remark: str = field(default="", compare=False)
    """What to add where `Applied.remark` is set."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a fix did not apply to something, or why the program failed with it. Its id alone
    identifies it: a refusal and a failure may share an id and differ in words."""

    id: str
    words: str = field(default="", compare=False)
    """As in `Target`."""


class DataChange(WordedEnum):
    """How batches may differ."""

    DRAWS = "draws", "other random draws"
    ORDER = "order", "samples in another order"
    SAMPLES = "samples", "other samples"
    SHUFFLES = "shuffles", "other shuffles"
    ROUNDING = "rounding", "other rounding"


class TraitKind(WordedEnum):
    """What the code that makes samples does; `record.fix_words.trait_words` fills in the
    template."""

    USES = "uses", "`{code}`{at}"
    HOLDS = "holds", "it holds a {code}"
    RUNS = "runs", "it runs a {code}"
    SETS = "sets", "`{code}` is set{at}"
    ITERATES = "iterates", "it holds a {code}, whose position carries over from sample to sample"
    CHANGES = "changes", "`{code}`{at} changes during training"
    UNWATCHED = "unwatched", "`{code}`{at} is too large to watch for changes"
    SHARED = "shared", "it holds a {code}, which other processes may change"
    WRITES = "writes", "`{code}`{at} has effects outside"
    HANDED_OUT = "handed_out", "batches hold `{code}` itself, not a copy"
    HOOKED = "hooked", "the hook `{code}` runs inside it"
    OPEN_FILE = "open_file", "{library}"
    NAMES_GPU = "names_gpu", "names the GPU{in_code}"
    HOLDS_GPU_TENSORS = "holds_gpu_tensors", "holds tensors on the GPU"
    MOVES_TO_GPU = "moves_to_gpu", "moves data to the GPU (`{code}`{at})"
    ASKS_WORKER = "asks_worker", "the dataset asks which worker it runs in"
    SAMPLER_SHARES_GENERATOR = (
        "sampler_shares_generator",
        "the sampler draws from the program's own generator",
    )
    SAMPLER_MAY_DRAW = "sampler_may_draw", "the sampler may draw as it goes: {because}"
    SAMPLER_CHANGES = "sampler_changes", "the sampler is changed as it goes: {because}"
    EPOCH_LEFT_EARLY = (
        "epoch_left_early",
        "the loop leaves epochs early, when the loader's generator has been read ahead",
    )
    UNKNOWN_NAME = "unknown_name", "`{code}`{at} is unknown"
    UNKNOWN_CLASS = "unknown_class", "what {code} does is unknown"
    TOO_LARGE = "too_large", "it is too large to inspect"
    TOO_MUCH_CODE = "too_much_code", "there is too much code to inspect"
    UNREADABLE = "unreadable", "inspecting it failed ({code})"


@dataclass(frozen=True, slots=True)
class _Record:
    """Converts to JSON, leaving out defaults, and back."""

    def to_json(self) -> dict[str, Any]:
        return {
            one.name: _plain(value)
            for one in fields(self)
            if one.compare and (value := getattr(self, one.name)) != one.default
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], text: str | None = None) -> Self:
        """`text` is the sentence stored with a record."""
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in {**data, "text": text}.items() if name in known}
        for name in values.keys() & _TYPES.keys():
            if values[name] is not None:
                values[name] = _TYPES[name](values[name])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class SourceLine(_Record):
    """A line of the user's code, as the user names the file."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Trait(_Record):
    """Something seen in the code of a dataset, collate function or sampler."""

    what: TraitKind
    code: str | None = None
    """A name as written in the code, a class, or a library."""
    place: SourceLine | None = None
    file: str | None = None
    """Set if only the file is known."""
    because: "Trait | None" = None


@dataclass(frozen=True, slots=True)
class Variation(_Record):
    """How batches differ, and why."""

    data: DataChange
    certain: bool = True
    """True: certain; False: possible."""
    because: Trait | None = None


@dataclass(frozen=True, slots=True)
class Applied(_Record):
    """A fix took effect."""

    target: Target
    object: str | None = None
    """The qualified class of what it took effect on."""
    place: SourceLine | None = None
    before: int | str | None = None
    after: int | str | None = None
    count: int | None = None
    total: int | None = None
    dtype: str | None = None
    """bf16 or fp16."""
    device: str | None = None
    varies: Variation | None = None
    """None: batches stay the same, or it is unknown (`OTHER_TARGET`)."""
    overrides: SourceLine | None = None
    """The program's own setting that it overrides."""
    of_torch_nn: bool = False
    """The class is one of torch.nn, which `model.compile()` would leave alone."""
    remark: bool = False
    """Whether the target's remark applies."""
    detail: str | None = None
    kind: FixKind | None = None
    text: str | None = field(default=None, compare=False)
    """The sentence, if the record was read from a file."""


@dataclass(frozen=True, slots=True)
class NotApplied(_Record):
    """A fix did not apply to something, applied to nothing, or was withdrawn."""

    reason: Reason
    target: Target | None = None
    object: str | None = None
    place: SourceLine | None = None
    value: int | str | None = None
    code: str | None = None
    """The program's code, a name in it, or a library."""
    trait: Trait | None = None
    varies: Variation | None = None
    raised: SourceLine | None = None
    """The line whose exception it is, where `place` is another."""
    error: str | None = None
    """The message of a foreign exception: shown, never parsed."""
    text: str | None = field(default=None, compare=False)
    """As in `Applied`."""


@dataclass(frozen=True, slots=True)
class Broke(NotApplied):
    """A fix took effect, and then the program could not go on."""


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """How to write a fix into the program."""

    words: str
    """What to do, in a sentence."""
    line: str | None = None
    """The requested line, changed; None if the edit belongs elsewhere."""
    before: tuple[str, ...] = ()
    """Lines to insert before it, at its indentation."""


@dataclass(frozen=True, slots=True)
class FixOutcome:
    """What became of one requested fix."""

    name: str
    value: int | str | None
    state: FixState
    kind: FixKind | None = None
    """The least exact kind it turned out to be; None if it did not apply."""
    applied: tuple[Applied, ...] = ()
    not_applied: tuple[NotApplied, ...] = ()
    broke: Broke | None = None

    @property
    def reason(self) -> Reason | None:
        """Why the program broke, or why the fix did not apply; None if it applied."""
        if self.state == FixState.APPLIED:
            return None
        return (self.broke or self.not_applied[0]).reason

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """From a JSON document; older ones hold sentences only."""
        state = FixState(data.get("state", FixState.APPLIED))
        where, reasons, kind = data.get("where") or [], data.get("reasons") or [], data.get("kind")
        broke = data.get("broke", _UNTYPED if state == FixState.BROKE and reasons else None)
        applied = data.get("applied", [_UNTYPED | {"kind": kind}] * len(where))
        refused = data.get("not_applied", [_UNTYPED] * (len(reasons) - (broke is not None)))
        return cls(
            data["name"],
            data.get("value"),
            state,
            None if kind is None else FixKind(kind),
            tuple(map(Applied.from_json, applied, where)),
            tuple(map(NotApplied.from_json, refused, reasons)),
            None if broke is None else Broke.from_json(broke, reasons[-1]),
        )


def fix_outcomes(facts: Iterable[Any], asked: Iterable[str] = ()) -> list[FixOutcome]:
    """One per fix, in the order they were installed; `asked` is what the user requested.

    Facts of older runs hold only a sentence, so their records have no place.
    """
    requested: dict[str, Mapping[str, Any]] = {}
    records: dict[str, list[Applied | NotApplied]] = {}
    for fact in facts:
        name = fact["name"]
        if fact["state"] == "asked":
            requested[name] = fact
            records[name] = []
        else:
            kind = _KINDS[FixState(fact["state"])]
            data = fact.get("record") or _UNTYPED | {"kind": fact["kind"]}
            records[name].append(kind.from_json(data, fact.get("text")))
    found = [
        outcome_of(name, fact["value"], records[name], fact["text"])
        for name, fact in requested.items()
    ]
    for text in asked:
        name, _, value = text.partition("=")
        if name not in requested:
            why = (NotApplied(NO_TORCH),)
            missed = FixOutcome(name, value or None, FixState.NOT_APPLICABLE, not_applied=why)
            found.append(missed)
    return found


def fact_state(record: Applied | NotApplied) -> FixState:
    """The state a record reports."""
    return next(state for state, kind in _KINDS.items() if type(record) is kind)


def outcome_of(
    name: str, value: int | str | None, records: Sequence[Applied | NotApplied], missing: str
) -> FixOutcome:
    """What became of a fix that reported these; `missing`: why it did nothing, if nothing."""
    applied = tuple(one for one in records if isinstance(one, Applied))
    broke = [one for one in records if isinstance(one, Broke)]
    refused = [one for one in records if type(one) is NotApplied]
    if not records:
        refused = [NotApplied(NOTHING_FOUND, text=missing)]
    return FixOutcome(
        name,
        value,
        max(map(fact_state, records), key=[*_KINDS].index, default=FixState.NOT_APPLICABLE),
        max((one.kind for one in applied if one.kind), key=[*FixKind].index, default=None),
        applied,
        tuple(refused),
        broke[-1] if broke else None,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Target | Reason):
        return value.id
    return value.to_json() if isinstance(value, _Record) else value


_KINDS: dict[FixState, type[Applied | NotApplied]] = {
    FixState.NOT_APPLICABLE: NotApplied,
    FixState.APPLIED: Applied,
    FixState.BROKE: Broke,
}
"""The records of each state; a later one decides the state of the fix."""
_UNTYPED = {"target": "other", "reason": "other"}
"""The record made for a bare sentence."""
_TYPES: dict[str, Any] = {
    "target": Target,
    "reason": Reason,
    "place": SourceLine.from_json,
    "overrides": SourceLine.from_json,
    "raised": SourceLine.from_json,
    "varies": Variation.from_json,
    "data": DataChange,
    "kind": FixKind,
    "what": TraitKind,
    "because": Trait.from_json,
    "trait": Trait.from_json,
}
"""How fields are read from JSON; others are taken unchanged."""

LOADER = Target("loader", "DataLoader{at}{change}{varies}")
MODEL = Target("model", "{object}, called{at}")
OPTIMIZER = Target("optimizer", "{object} made{at}")
OTHER_TARGET = Target("other")
"""In runs older than typed records."""
NOTHING_FOUND = Reason("nothing_found")
"""The sentence is `Fix.missing`."""
INSTALL_FAILED = Reason("install_failed", "could not be installed: {error}")
NO_TORCH = Reason("no_torch", "the program did not import torch")
NO_CUDA = Reason("no_cuda", "no CUDA device")
OWN_BATCH_SAMPLER = Reason("own_batch_sampler", "{subject} has its own batch sampler")
NOT_BATCHED = Reason("not_batched", "{subject} does not form batches")
EPOCH_TOO_SMALL = Reason("epoch_too_small", "{subject} has only {value} samples")
OUT_OF_MEMORY = Reason(
    "out_of_memory", "a batch of {value} does not fit into memory; try a smaller one"
)
DETERMINISTIC = Reason("deterministic", "the program asks for deterministic results{at}")
TORCHSCRIPT = Reason("torchscript", "{subject}: it is a TorchScript module")
PROGRAM_COMPILES = Reason("program_compiles", "{subject}: the program compiles it itself")
