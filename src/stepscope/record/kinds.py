"""Kinds that documents name by a word and several layers distinguish."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Self


class WordedEnum(StrEnum):
    """Members have their value and the words that say it, as a template: `NAME = value, words`."""

    words: str

    def __new__(cls, value: str, words: str) -> Self:
        made = str.__new__(cls, value)
        made._value_ = value
        made.words = words
        return made


class HostWait(StrEnum):
    """A call at which the host waits for the device, as a run's `syncs` name it."""

    ITEM = "item"
    BOOL = "bool"
    FLOAT = "float"
    INT = "int"
    INDEX = "index"
    TOLIST = "tolist"
    CPU = "cpu"
    NUMPY = "numpy"
    TO_CPU = "to('cpu')"
    NONZERO = "nonzero"
    MASKED_SELECT = "masked_select"
    UNIQUE = "unique"
    SYNCHRONIZE = "synchronize"
    EVENT_SYNCHRONIZE = "Event.synchronize"
    STREAM_SYNCHRONIZE = "Stream.synchronize"
    COPY = "copy"
    PAGEABLE_COPY = "pageable copy"
    PINNED_COPY = "h2d"


class IdleCause(StrEnum):
    """Why a device had nothing to do, as `idle_ns` names it."""

    LOADER = "loader"  # the host waited for data
    HOST = "host"  # the host was busy and launched too late
    SYNCHRONISATION = "synchronisation"  # the host was blocked, or catching up after that
    COPY = "copy"  # the same for a copy from host to device
    OTHER_RANKS = "other_ranks"  # a collective had not begun
    BETWEEN_KERNELS = "between_kernels"  # the device went from one queued kernel to the next
    UNKNOWN = "unknown"


class ThrottleReason(StrEnum):
    """What held a GPU's clocks down."""

    POWER_CAP = "power cap"
    HARDWARE = "hardware slowdown"
    SYNC_BOOST = "sync boost"
    THERMAL = "thermal slowdown"
    HARDWARE_THERMAL = "hardware thermal slowdown"
    POWER_BRAKE = "power brake"
    BOARD_LIMIT = "board limit"
    RELIABILITY = "reliability limit"

    @property
    def is_heat(self) -> bool:
        """Whether better cooling would help."""
        return self in (self.HARDWARE, self.THERMAL, self.HARDWARE_THERMAL)


class EndPart(StrEnum):
    """What a proof compares of how two trials ended."""

    WEIGHTS = "weights"
    BUFFERS = "buffers"
    OPTIMIZER = "optimizer state"
    FILES = "saved files"
    OUTPUT = "output"


class SampleWork(StrEnum):
    """What code does to make a sample."""

    READING = "reading"
    """Bytes come from a file, a database or the network."""
    DECODING = "decoding"
    """Compressed or serialized bytes become pixels, audio samples or objects."""
    AUGMENTING = "augmenting"
    """Arrays, images or tensors become others."""


class ModelWrapper(NamedTuple):
    """A module that, as far as fixes care, only calls the model inside it."""

    package: str
    attribute: str
    """Where it keeps the model."""
    made_by: tuple[str, ...]
    """What source code calls to make one: given the model, it returns the wrapper."""


MODEL_WRAPPERS: Final[Mapping[str, ModelWrapper]] = {
    "DataParallel": ModelWrapper("torch.nn.", "module", ("DataParallel",)),
    "DistributedDataParallel": ModelWrapper("torch.nn.", "module", ("DistributedDataParallel",)),
    "AveragedModel": ModelWrapper("torch.optim.", "module", ("AveragedModel",)),
    "OptimizedModule": ModelWrapper("torch._dynamo.", "_orig_mod", ("compile",)),
    "_FabricModule": ModelWrapper("lightning", "_forward_module", ("setup", "setup_module")),
}
"""By class name. `nn.DataParallel` over one device counts."""
