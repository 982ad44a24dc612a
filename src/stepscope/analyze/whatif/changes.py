"""Changes of a window's tasks: what a fix removes, shrinks, merges or re-orders.

Each function returns a `Change`: tasks in, new tasks out. `model.replay(a, b)` applies `a`, then
`b`. What a change needs and no recording contains (the launch of a graph, the hand-over
of a batch) is a prior, given as an argument with its default in `priors`.
"""

from collections.abc import Callable

from stepscope.analyze.whatif.changes_device import (
    fuse_pointwise,
    merge_kernels,
    overlap_copies,
    scale_copies,
    scale_kernels,
)
from stepscope.analyze.whatif.changes_host import (
    drop_host,
    drop_waits,
    no_launch_cost,
    remove_host,
    scale_host,
    unblock_copies,
)
from stepscope.analyze.whatif.changes_loader import batch_time, pinned, prefetch, recycled, workers
from stepscope.analyze.whatif.changes_phase import fused_optimizer, remove_phase, scale_phase
from stepscope.analyze.whatif.tasks import Tasks

Change = Callable[[Tasks], Tasks]

__all__ = [
    "Change",
    "batch_time",
    "drop_host",
    "drop_waits",
    "fuse_pointwise",
    "fused_optimizer",
    "merge_kernels",
    "no_launch_cost",
    "overlap_copies",
    "pinned",
    "prefetch",
    "recycled",
    "remove_host",
    "remove_phase",
    "scale_copies",
    "scale_host",
    "scale_kernels",
    "scale_phase",
    "unblock_copies",
    "workers",
]
