"""Rows of a run made by hand, for tests where the right answer is known. Times are milliseconds."""

import math

import numpy as np

from stepscope.analyze.run.steps import DEVICE_PHASES
from stepscope.record.row_log import ROW_COLUMNS, Phase, RowKind

MS = 1e6
START = 5_000 * MS
PHASES = [phase.name.lower() for phase in Phase]


def row(kind, *, lead=0.0, loss=math.nan, device=(), **values):
    """One row: phases in ms by name, counters by theirs; it lasts as long as its phases."""
    made = dict.fromkeys(ROW_COLUMNS, 0.0) | {"kind": float(kind), "lead_ns": lead * MS}
    made["loss"] = loss
    made |= dict.fromkeys((name for name in ROW_COLUMNS if name.startswith("device_")), math.nan)
    for name, ms in zip(DEVICE_PHASES, device, strict=False):
        made[f"device_{name}_ns"] = ms * MS
    for name, value in values.items():
        made[f"{name}_ns" if name in PHASES else name] = value * MS if name in PHASES else value
    made["end_ns"] = sum(made[f"{name}_ns"] for name in PHASES)
    return made


def table(*rows):
    """Rows one after another from START on; an item may be a list of them."""
    flat = [r for item in rows for r in (item if isinstance(item, list) else [item])]
    made = np.zeros(len(flat), dtype=[(name, "<f8") for name in ROW_COLUMNS])
    for index, values in enumerate(flat):
        for name, value in values.items():
            made[name][index] = value
    made["end_ns"] = START + np.cumsum(made["end_ns"])
    return made


def step(ms=10.0, **more):
    """A training step that takes so long, a tenth of it waiting for data."""
    counted = {"forwards": 1, "backwards": 1, "batches": 1, "samples": 8, "loss": 0.5}
    return row(RowKind.STEP, **({"data_wait": ms / 10, "forward": ms * 9 / 10} | counted | more))


def epoch(ms=0.0, **more):
    """The start of an epoch."""
    return row(RowKind.EPOCH, **({"epoch_start": ms} | more))


def evaluation(ms=2.0, **more):
    return row(RowKind.EVAL, **({"forward": ms, "forwards": 1, "batches": 1, "samples": 8} | more))


SETUP = row(RowKind.EPOCH, other=100)
END = row(RowKind.END, other=5)
