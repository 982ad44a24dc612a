"""One technique's row of the memory study: peak memory, the largest batch, throughput there."""

from collections.abc import Sequence
from typing import Any, Final

from stepscope.bench.point import Point
from stepscope.bench.studies.batch_search import largest_batch
from stepscope.bench.studies.kept import Kept, Record, Tell
from stepscope.bench.studies.one_model import Subject
from stepscope.bench.studies.techniques import Technique

_STEPS: Final = 8
"""Of a try: by the third step the optimizer's state is there too."""
_FINE: Final = 16
_UNKNOWN: Final = (
    "peak_memory_bytes", "samples_per_s", "largest_batch", "largest_micro_batch", "too_large",
    "bound", "bound_why", "largest_samples_per_s",
)  # fmt: skip


class TechniqueRows:
    """Measures techniques on one device; every try is a process of its own."""

    def __init__(
        self, about: Subject, device: str, limit: int, seconds: float, kept: Kept, tell: Tell
    ) -> None:
        self.device_name: str | None = None
        self._about, self._device, self._limit = about, device, limit
        self._seconds, self._kept, self._tell = seconds, kept, tell

    def row(self, technique: Technique) -> dict[str, Any]:
        """What is known of a technique; None where it is not.

        Batches count the samples of a step of the optimizer; a call has `micro_batch` of them.
        """
        batch, parts = self._about.batch, technique.accumulate
        row: dict[str, Any] = {
            "technique": technique.name,
            "fixes": list(technique.fixes),
            "accumulate": parts,
            "status": "not applicable",
            "why": None,
            "applies": False,
            **dict.fromkeys(_UNKNOWN),
            "tries": [],
        }
        if batch < parts:
            return row | {"why": f"a batch of {batch} has no {parts} parts"}
        self._tell(f"{technique.name}: peak memory at batch {batch:,}")
        first = self._try(technique, batch)
        self.device_name = self.device_name or _measured(first, "device_name")
        refused = _refused(first, technique.fixes)
        if refused is not None:
            return row | {"why": refused}
        steady = self._steady(technique, batch) if first["status"] == "ok" else first
        status, why = steady["status"], steady["why"]
        if status not in ("ok", "out_of_memory"):
            return row | {"status": status, "why": why}
        found = self._largest(technique)
        if first["status"] != "ok" and found["largest_batch"]:
            # Memory may have run out before the fixes had their turn: a batch that fits tells.
            fitted = self._steady(technique, found["largest_batch"])
            refused = _refused(fitted, technique.fixes)
            if refused is not None:
                return row | {"why": refused}
        peaks = [_measured(one, "peak_memory_bytes") or 0 for one in (first, steady)]
        at_batch = {
            "status": status,
            "why": why,
            "applies": True,
            "peak_memory_bytes": max(peaks) if status == "ok" else None,
            "samples_per_s": _rate(steady),
        }
        return row | at_batch | found

    def _largest(self, technique: Technique) -> dict[str, Any]:
        def attempt(batch: int) -> dict[str, Any]:
            if batch != self._about.batch:
                self._tell(f"{technique.name}: does batch {batch:,} fit?")
            record = self._try(technique, batch)
            told = {name: record[name] for name in ("status", "why", "seconds")}
            return told | {"peak_memory_bytes": _measured(record, "peak_memory_bytes")}

        parts = technique.accumulate
        found = largest_batch(self._about.batch, self._limit, self._seconds, attempt, parts)
        most, too_large, bound, rate = found.batch, found.too_large, found.bound, None
        while most:
            steady = self._steady(technique, most)
            rate = _rate(steady)
            if steady["status"] != "out_of_memory":
                break
            # What a few steps had room for, many had not.
            less = (most - max(parts, most // _FINE)) // parts * parts
            most, too_large, bound = less or None, most, "memory"
        return {
            "largest_batch": most,
            "largest_micro_batch": most // parts if most else None,
            "too_large": too_large,
            "bound": bound,
            "bound_why": found.why,
            "largest_samples_per_s": rate,
            "tries": found.tries,
        }

    def _try(self, technique: Technique, batch: int) -> Record:
        """A few steps: do they fit?"""
        return self._kept(self._point(technique, batch, steps=_STEPS))

    def _steady(self, technique: Technique, batch: int) -> Record:
        """As many steps as it takes to know the throughput."""
        self._tell(f"{technique.name}: throughput at batch {batch:,}")
        return self._kept(self._point(technique, batch))

    def _point(self, technique: Technique, batch: int, **more: Any) -> Point:
        """Where it was not said otherwise the samples are one batch that is on the device."""
        micro = batch // technique.accumulate
        own = {"data": "resident", "test_samples": min(micro, 64), "samples": micro}
        settings = {**own, **self._about.settings, **more}
        if "steps" in more:
            for name in ("seconds", "epochs", "target_score"):
                settings.pop(name, None)
        return Point.of(
            self._about.model, "train", micro, self._device, technique.fixes, **settings
        )


def _measured(record: Record, name: str) -> Any:
    return (record["measured"] or {}).get(name) if record["status"] == "ok" else None


def _rate(record: Record) -> float | None:
    elapsed = _measured(record, "elapsed_s")
    return float(_measured(record, "samples") / elapsed) if elapsed else None


def _refused(record: Record, fixes: Sequence[str]) -> str | None:
    """Why none of the fixes took hold; None if one did, if there are none, or if it failed."""
    states = record["fixes"]
    if not fixes or record["status"] != "ok" or not states:
        return None
    if any(fix["state"] == "applied" for fix in states):
        return None
    return "; ".join(reason for fix in states for reason in fix["reasons"]) or "no effect"
