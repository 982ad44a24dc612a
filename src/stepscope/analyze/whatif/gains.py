"""What each fix changes in a window, by the roofline, measured ceilings and stated priors."""

from collections.abc import Callable, Mapping
from typing import Final

from stepscope.analyze.whatif import gains_data as data
from stepscope.analyze.whatif import gains_launch as launch
from stepscope.analyze.whatif.changes import Change
from stepscope.analyze.whatif.gains_attention import sdpa
from stepscope.analyze.whatif.gains_known import Known
from stepscope.analyze.whatif.gains_layout import channels_last, cudnn_benchmark
from stepscope.analyze.whatif.gains_precision import amp, tf32

Gain = Callable[[str | None, Known], list[Change] | None]

GAINS: Final[Mapping[str, Gain]] = {
    "threads": data.threads,
    "cache": data.cache,
    "workers": data.more_workers,
    "pin": data.pin,
    "prefetch": data.prefetch,
    "recycle": data.recycle,
    "nosync": data.nosync,
    "lazyitem": data.lazyitem,
    "tf32": tf32,
    "cudnn_benchmark": cudnn_benchmark,
    "cuda_graph": launch.cuda_graph,
    "accumulate": data.accumulate,
    "amp": amp,
    "sdpa": sdpa,
    "channels_last": channels_last,
    "checkpointing": data.checkpointing,
    "compile": launch.compile_,
    "foreach": launch.foreach,
    "fused_optimizer": launch.fused,
}
NOT_IN_A_STEP: Final = ("expandable_segments", "affinity", "batch", "drop_last", "persistent")
"""Fixes whose gain no window shows: they act between steps, on memory, or change the batch."""


def change_for(fix: str, value: str | None, known: Known) -> list[Change] | None:
    """What a fix (as `run --fix name=value` takes it) changes in a window, to be replayed in order.

    None where it does not apply to this program, or where nothing tells what it would do.
    """
    gain = GAINS.get(fix)
    return gain(value, known) if gain is not None else None
