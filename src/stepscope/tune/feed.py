"""How the workers of a loader feed the steps of a trial."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from stepscope.analyze.steps import Rows
from stepscope.record.rows import Kind

_PREFETCH = 2  # batches a worker makes ahead where the program does not say


@dataclass(frozen=True, slots=True)
class Feed:
    """In steps; all 0 where no worker feeds them."""

    cycle: int = 0
    """After so many each worker has delivered once."""
    buffer: int = 0
    """So many are fed by what workers keep ready."""
    epoch: int = 0
    """So many make an epoch, as the loader's sizes say; 0: not known."""
    start_ms: float = 0.0
    """What the start of an epoch took, where it was looked at."""


def read_feed(rows: Rows, facts: Mapping[str, Sequence[Mapping[str, Any]]], steps: int) -> Feed:
    """How the loader with the largest buffers feeds the steps; those of evaluations do not."""
    if not steps:
        return Feed()
    rows = rows[rows["end_ns"] > 0]
    feeding = _feeding(rows)
    loaders = [fact for fact in facts.get("loader", ()) if fact["id"] in feeding]
    if not loaders:
        return Feed()
    per_step = _batches_per_step(rows, steps)
    largest = max(loaders, key=_kept_ready)
    return Feed(
        cycle=ceil(largest["num_workers"] / per_step),
        buffer=ceil(_kept_ready(largest) / per_step),
        epoch=_epoch(largest, per_step),
    )


def rounds_of(workers: int, prefetch: int | None, batches_per_step: float = 1.0) -> int:
    """How many steps are fed by what so many workers keep ready."""
    return ceil(workers * (prefetch or _PREFETCH) / max(batches_per_step, 1e-9))


def _kept_ready(loader: Mapping[str, Any]) -> int:
    workers = int(loader["num_workers"] or 0)
    return workers * int(loader["prefetch_factor"] or _PREFETCH)


def _epoch(loader: Mapping[str, Any], per_step: float) -> int:
    samples, size = loader.get("samples"), loader.get("batch_size")
    if not samples or not size:
        return 0
    batches = samples // size if loader.get("drop_last") else ceil(samples / size)
    return max(1, round(batches / per_step)) if batches else 0


def _feeding(rows: Rows) -> set[int]:
    """The loaders whose iterators are followed by something else than an evaluation."""
    kind = rows["kind"].astype(int)
    following = np.append(kind[1:], Kind.END)
    chosen = (kind == Kind.EPOCH) & ~np.isin(following, (Kind.EVAL, Kind.END))
    if not chosen.any():  # an inference program's calls all look like evaluations
        chosen = kind == Kind.EPOCH
    return {int(who) for who in rows["who"][chosen]}


def _batches_per_step(rows: Rows, steps: int) -> float:
    training = rows["kind"].astype(int) != Kind.EVAL
    if not rows["batches"][training].any():
        training = np.ones(len(rows), bool)
    return max(1.0, float(rows["batches"][training].sum()) / steps)
