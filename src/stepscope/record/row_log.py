"""The row log: what the probe writes while the program runs.

A row is a stretch of the observed thread's time that ends with an event (`RowKind`). Rows follow
each other without gaps, so they add up to the time since the probe began; steps are assembled from
them later. Times are nanoseconds of CLOCK_MONOTONIC; NaN means unknown.
"""

from enum import IntEnum
from typing import Final


class Phase(IntEnum):
    """Where the host's time goes, exclusive of nested phases. The first six are a step's phases."""

    OTHER = 0
    DATA_WAIT = 1
    H2D = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    WAIT = 6  # the host waits for the device
    SAVE = 7  # a checkpoint is written
    EPOCH_START = 8  # a loader's iterator is made, its workers started
    COMPILE = 9  # torch.compile at work
    OBSERVER = 10  # the kernel-level recorder starting and stopping


class RowKind(IntEnum):
    """What ended a row."""

    STEP = 1  # an optimizer stepped
    MARK = 2  # the program called stepscope.step()
    EVAL = 3  # a root model returned without recording gradients
    CALL = 4  # a root model returned, no optimizer step seen so far
    BACKWARD = 5  # backward returned, no optimizer step seen so far
    BATCH = 6  # a loader delivered, neither root nor optimizer seen so far
    SAVE = 7  # a checkpoint was written
    EPOCH = 8  # a loader's iterator was made
    WINDOW = 9  # kernel-level recording started or stopped
    END = 10  # the program ended
    GRAD = 11  # torch.autograd.grad returned, no backward or optimizer seen so far
    ACT = 12  # as EVAL, in training mode and without a loader: the next steps learn from it


STEP_PHASES: Final = ("data_wait", "h2d", "forward", "backward", "optimizer", "other")

FLAG_PROFILED: Final = 1  # flag: kernel-level recording was on during the row
FLAG_STACKS: Final = 2  # flag: … and it carried stacks
FLAG_UNCLOCKED: Final = 4
"""Flag: the phase clocks were off in part of the row. Known are its end, losses, samples, waits for
data, checkpoints, starts of epochs, compilation and recording; the rest is NaN."""
FLAG_OCCASION: Final = 8
"""Flag: the clocks were on for a reason (the first steps, an evaluation, after being off), not by
chance: the row does not represent unclocked ones."""
FLAG_SAMPLED: Final = 16
"""Flag: a helper thread sampled the host's code during the row."""
UNEXPLAINED: Final = 0.2
"""Share of the step; code in no phase that takes more is sampled and named."""

ROW_COLUMNS: Final = (
    "end_ns",
    "kind",
    "who",  # index of the optimizer or root that ended the row
    "flags",
    *(f"{phase.name.lower()}_ns" for phase in Phase),
    "lead_ns",  # from the row's start to its first phase
    "samples",  # as the loader delivered them
    "batches",
    "inputs",  # samples as the root models received them, for programs without a loader
    "forwards",
    "backwards",
    "loss",  # mean of the scalars backpropagated in the row
    "device_h2d_ns",
    "device_forward_ns",
    "device_backward_ns",
    "device_optimizer_ns",
    "device_other_ns",
)

FIRST_SITE_COLUMNS: Final = ("count", "total_ns", "bytes")
"""Columns that every version has written."""

SITE_COLUMNS: Final = (*FIRST_SITE_COLUMNS, "sampled_count", "sampled_ns", "sampled_bytes")
"""Counters per site (a source line doing one kind of thing); row i belongs to fact `site` i. Rows
clocked by chance are also counted separately: they represent the unclocked ones."""

CLOCK_COLUMNS: Final = ("count", "total_ns")
"""Counters of the data clock; row i belongs to fact `clock` with that pid and slot."""


RANKS_FOLDER: Final = "ranks"
"""In the folder of a run with several ranks: a folder for each, named by its number; with `.1`,
`.2` and so on where it was started again."""
MEETINGS_FILE: Final = "meetings.npy"


class MeetingKind(IntEnum):
    """What ranks do together, and so wait for each other in."""

    GRADIENTS = 1  # a backward, at whose end DDP and FSDP wait for each other's gradients
    ALL_REDUCE = 2
    BROADCAST = 3
    REDUCE = 4
    ALL_GATHER = 5
    GATHER = 6
    SCATTER = 7
    REDUCE_SCATTER = 8
    ALL_TO_ALL = 9
    BARRIER = 10


MEETING_COLUMNS: Final = (
    "begun_ns",
    "arrived_ns",  # when the rank's own part was done; 0: never
    "left_ns",  # when the call returned; 0: never
    "kind",
    "group",  # a hash of the process group's name; 0: of all ranks
    "ranks",  # in the group; 0: all
    "bytes",
    "site",  # of the line; -1: not looked up
    "asynchronous",  # whether the call only began the collective
)
"""One row per collective and per backward of a rank, CLOCK_MONOTONIC, which all processes of a
machine share."""

SAMPLE_COLUMNS: Final = (
    "t_ns",
    "cpu_percent",
    "rss_bytes",
    "processes",
    "read_bytes",
    "write_bytes",
    "gpu_percent",
    "gpu_memory_bytes",
    "gpu_power_w",
    "gpu_sm_mhz",
    "gpu_temperature_c",
    "gpu_throttle",  # NVML's bit mask of clock event reasons
    "gpu_other_processes",
    "gpu_energy_mj",  # NVML's running total
    "other_cpu_percent",  # of one core: others' use of the program's cores
)
"""What the parent samples on the machine, about ten times a second."""

FIRST_SAMPLE_COLUMNS: Final = SAMPLE_COLUMNS[:-1]
"""Columns that every version has written."""

CLOCKED_COLUMNS: Final = (
    *(f"{name}_ns" for name in ("other", "h2d", "forward", "backward", "optimizer", "wait")),
    "inputs",
    "forwards",
)
"""Columns filled only while the clocks are on; NaN in other rows."""

MAY_BE_UNKNOWN: Final = frozenset(
    (
        *("loss", *(name for name in ROW_COLUMNS if name.startswith("device_"))),
        *(*CLOCKED_COLUMNS, *SAMPLE_COLUMNS[1:]),
    )
)
"""Columns in which NaN is not damage."""
