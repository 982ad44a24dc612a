"""Batches, copies, waits and threads."""

import re

from stepscope.analyze.whatif.changes import (
    Change,
    batch_time,
    drop_waits,
    overlap_copies,
    pinned,
    recycled,
    scale_host,
    scale_phase,
    unblock_copies,
    workers,
)
from stepscope.analyze.whatif.gains_factors import any_of
from stepscope.analyze.whatif.gains_known import Known, config, host_operators
from stepscope.analyze.whatif.select import host
from stepscope.hardware.ceiling_cache import known_ceilings

_PARALLEL = 0.9  # of a large operator's time: shared out among threads
_LARGE_NS = 100_000.0  # an operator must take that long on average to gain from more threads
_ADDED = 0.15  # of an optimizer's step: adding a batch's gradients to those there are
_CACHED = 0.02  # of making a sample: looking it up


def more_workers(value: str | None, known: Known) -> list[Change] | None:
    """The loader's queue with so many workers (4 unless told)."""
    return [workers(int(value or 4))] if _loaders(known) else None


def cache(value: str | None, known: Known) -> list[Change] | None:
    """Only collating is left of making a batch, once every sample was seen."""
    sources = (known.show or {}).get("pipeline") or []
    if not sources:
        return None
    collating = max(float(source.get("collate_share") or 0.0) for source in sources)
    return [batch_time(min(1.0, collating + _CACHED))]


def pin(value: str | None, known: Known) -> list[Change] | None:
    """Copies to the device no longer block, at the rate measured for pinned memory, and a thread
    takes batches over from workers."""
    if known.device != "cuda":
        return None
    return [unblock_copies(pinned_speedup(known)), pinned()]


def prefetch(value: str | None, known: Known) -> list[Change] | None:
    """The same, and they run beside compute."""
    if known.device != "cuda":
        return None
    return [unblock_copies(pinned_speedup(known)), pinned(), overlap_copies()]


def recycle(value: str | None, known: Known) -> list[Change] | None:
    """Batches of workers no longer come in fresh memory."""
    return [recycled()] if _loaders(known) else None


def nosync(value: str | None, known: Known) -> list[Change] | None:
    """Explicit synchronisations go away."""
    return [drop_waits("synchronize")] if known.device == "cuda" else None


def lazyitem(value: str | None, known: Known) -> list[Change] | None:
    """Reading numbers in the loop no longer waits."""
    return [drop_waits("item")] if known.device == "cuda" else None


def threads(value: str | None, known: Known) -> list[Change] | None:
    """Large operators shared out among so many threads; None where they are not known."""
    now = (config(known).get("switches") or {}).get("threads")
    names = [o["name"] for o in host_operators(known) if o["self_ns"] >= _LARGE_NS * o["count"]]
    if known.device != "cpu" or not now or not value or not names:
        return None
    factor = 1 - _PARALLEL + _PARALLEL * now / int(value)
    return [scale_host(host(operator=any_of(names)), factor)]


def accumulate(value: str | None, known: Known) -> list[Change] | None:
    """The optimizer steps once in so many batches (2 unless told); gradients are added up."""
    steps = 1 / int(value or 2)
    return [scale_phase("optimizer", steps + (1 - steps) * _ADDED)]


def checkpointing(value: str | None, known: Known) -> list[Change] | None:
    """Backward does the forward again: this costs time. None where phases are not known."""
    phases = (known.show or {}).get("phases_ms") or {}
    forward, backward = phases.get("forward") or 0.0, phases.get("backward") or 0.0
    return [scale_phase("backward", 1 + forward / backward)] if backward else None


def pinned_speedup(known: Known) -> float:
    """How many times faster pinned copies are than the program's: measured, else 1."""
    copies = (known.trace or {}).get("copies") or []
    if not any(re.search("pageable", str(c.get("memory"))) for c in copies):
        return 1.0
    name = ((known.trace or {}).get("source") or {}).get("device")
    for document in known_ceilings():
        entries = document["ceilings"]
        pinned, pageable = entries.get("h2d_pinned_gb_per_s"), entries.get("h2d_pageable_gb_per_s")
        if document.get("device") == name and pinned and pageable:
            return max(1.0, float(pinned["value"] / pageable["value"]))
    return 1.0


def _loaders(known: Known) -> bool:
    return bool((known.show or {}).get("loaders"))
