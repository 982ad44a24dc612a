"""How the batches of a step are made, and what the findings about it have in common."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.diagnose.case import Case
from stepscope.record.finding import Evidence, Place

_LIMITS = 0.7  # of the step: workers that need longer for a batch set its pace
_WORKS = 0.7  # of making a batch: the rest is then rather waiting for a core that others have
_WAITING = 4  # workers to a core at most, however little they work
_USUAL_CORES = 4  # where it is not known how many may be used


@dataclass(frozen=True, slots=True)
class Loading:
    """How the batches of the step are made. Times are per step."""

    loader: Mapping[str, Any]
    source: Mapping[str, Any]
    """The dataset's fetches; empty where none were seen."""
    wait_ms: float
    share: float
    compute_ms: float
    """The step without waiting for data."""
    batch_ms: float
    """To make a step's batches in one process."""
    workers: int
    cores: int
    """Usable ones."""

    @property
    def most(self) -> int:
        """Workers that these cores have room for: one each, more where they wait for storage."""
        share = self.source.get("processor_share")
        if share is None or share > _WORKS:
            return self.cores
        return int(self.cores / max(share, 1 / _WAITING))

    @property
    def limits(self) -> bool:
        """Whether making batches sets the step's pace, not merely the odd late one."""
        step_ms = self.compute_ms + self.wait_ms
        return self.workers == 0 or self.batch_ms / self.workers >= _LIMITS * step_ms

    @property
    def needed(self) -> int:
        """Workers that hide loading behind compute, and one to spare."""
        hidden = math.ceil(self.batch_ms / max(self.compute_ms, 1e-3))
        return max(1, min(hidden + 1, self.most))

    @property
    def parts(self) -> list[Mapping[str, Any]]:
        """What making a batch goes to, largest first."""
        return [part for part in self.source.get("parts") or () if part["what"] != "rest"]


def loading(case: Case) -> Loading | None:
    """None where no loader was seen."""
    show = case.show or {}
    loader = _feeding(show)
    if loader is None or case.step_ms <= 0:
        return None
    sources = show.get("pipeline") or []
    same = [one for one in sources if one["dataset"] == loader["dataset"]]
    source: Mapping[str, Any] = next(iter(same or sources), {})
    wait_ms = float(case.phases.get("data_wait") or 0.0)
    workers = int(loader.get("num_workers") or 0)
    made = float(source.get("ms_per_batch") or 0.0) * _batches_a_step(show, loader)
    return Loading(
        loader=loader,
        source=source,
        wait_ms=wait_ms,
        share=wait_ms / case.step_ms,
        compute_ms=max(case.step_ms - wait_ms, 0.0),
        # Workers are not recorded; what the host makes in recorded steps is slowed by that.
        batch_ms=made if workers else wait_ms or made,
        workers=workers,
        cores=max(1, int(case.cores or _USUAL_CORES)),
    )


def places(how: Loading, *parts: Mapping[str, Any]) -> tuple[Place, ...]:
    """The lines of parts, then the loader's."""
    known = [Place(one["file"], one["line"]) for one in (*parts, how.loader) if one.get("file")]
    return tuple(dict.fromkeys(known))


def evidence(how: Loading) -> tuple[Evidence, ...]:
    """What every finding about a wait for data rests on."""
    return (
        Evidence("waiting for data", how.wait_ms, "ms a step"),
        Evidence("making a batch, in one process", how.batch_ms, "ms"),
        Evidence("everything else", how.compute_ms, "ms a step"),
        Evidence("workers", how.workers),
        Evidence("usable cores", how.cores),
    )


def parts_of(how: Loading) -> tuple[Evidence, ...]:
    """The largest parts of making a batch."""
    unit = "% of making a batch"
    return tuple(Evidence(one["name"], 100 * one["share"], unit) for one in how.parts[:3])


def _feeding(show: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The loader of the training data: of the dataset that took most time, the largest."""
    loaders = show.get("loaders") or []
    busiest = {source["dataset"] for source in (show.get("pipeline") or [])[:1]}
    same = [one for one in loaders if one["dataset"] in busiest] or loaders

    def size(one: Mapping[str, Any]) -> float:
        return math.inf if one.get("samples") is None else float(one["samples"])

    return max(same, key=size, default=None)


def _batches_a_step(show: Mapping[str, Any], loader: Mapping[str, Any]) -> int:
    """More than one where gradients are accumulated."""
    samples, batch = (show.get("steps") or {}).get("samples_per_step"), loader.get("batch_size")
    return max(1, round(samples / batch)) if samples and batch else 1
