"""The items of each kind of result, from its document and what lies beside it."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.grid import NONE
from stepscope.compare.series import Series, point_series, trace_series
from stepscope.compare.sides import Document, Item
from stepscope.record.errors import UsageError

AS_IT_IS, WITH_FIXES = "as it is", "with fixes"
_WHAT = {"train": "training", "infer": "inference", "generate": "inference"}
_KNOWN = ("training", "inference", "batches")
Records = Sequence[Mapping[str, Any]]


def run_items(document: Document, series: Series) -> tuple[Item, ...]:
    """A run's only item. Raises UsageError where it has no steady steps."""
    steps = document["steps"]
    if not series:
        name, count = document["run"]["id"], steps["count"]
        raise UsageError(f"run {name} has no steady steps to compare ({count} steps in all)")
    what = steps["what"] if steps["what"] in _KNOWN else None
    return (Item("", "", (series,), steps["samples_per_step"], what),)


def trace_items(document: Document) -> tuple[Item, ...]:
    """A recorded window's only item; it does not tell a training from an inference."""
    return (Item("", "", (trace_series(document),), None, None),)


def bench_items(document: Document, records: Records) -> tuple[Item, ...]:
    """One a point that was measured; without the `records` of its processes, by its mean alone."""
    found = []
    for point in document["points"]:
        series = point_series(records, point["key"])
        if not series and point["mean_ms"]:
            series = ((float(point["mean_ms"]),),)
        if series:
            samples = _samples(records, point["key"]) or float(point["batch"])
            found.append(
                Item(point["key"], _label(point), series, samples, _WHAT.get(point["mode"]))
            )
    if not found:
        raise UsageError("nothing in this bench was measured")
    return tuple(found)


def tune_items(document: Document, trials: Records) -> tuple[Item, ...]:
    """The program as it is and, where fixes were confirmed, with them; by fresh trials if any.

    `trials` are the journal's; without them each is known by its mean alone.
    """
    final = document.get("final") or {}
    numbers = set(final.get("trials") or ())
    fine = [one for one in trials if one["status"] == "ok" and one["step_ms"] and _plain(one)]
    fresh = [one for one in fine if one["number"] in numbers]
    bare = [one for one in fresh or fine if not one["ask"]["fixes"]]
    fixed = [one for one in fresh if one["ask"]["fixes"]]
    measured = final.get("measured") or {}
    found = (
        _tuned(AS_IT_IS, bare, measured.get("baseline") or document.get("baseline") or {}),
        _tuned(WITH_FIXES, fixed, measured.get("ladder") or {}),
    )
    items = tuple(item for item in found if item is not None)
    if not items:
        raise UsageError("nothing in this tune was measured")
    return items


def _plain(trial: Mapping[str, Any]) -> bool:
    """Whether a trial was made for its speed, not to record, to patch or for a proof."""
    ask = trial["ask"]
    others = ("window", "perturb", "patched", "seed", "held")
    return not any(ask.get(name) for name in others)


def _tuned(label: str, trials: Records, measured: Document) -> Item | None:
    if trials:
        first = trials[0]
        series = tuple(tuple(map(float, one["step_ms"])) for one in trials)
        return Item(label, label, series, first["samples_per_step"], first["what"])
    if not measured.get("step_ms"):
        return None
    rate, step_ms = measured.get("samples_per_s"), float(measured["step_ms"])
    return Item(label, label, ((step_ms,),), rate * step_ms / 1e3 if rate else None, None)


def _samples(records: Records, key: str) -> float | None:
    """A call has, by what its processes counted."""
    fine = [one["measured"] for one in records if one["key"] == key and one["status"] == "ok"]
    calls = sum(one["calls"] for one in fine)
    return sum(one["samples"] for one in fine) / calls if calls else None


def _label(point: Mapping[str, Any]) -> str:
    fixes = "" if point["variant"] in ("", NONE) else f" {point['variant']}"
    return f"{point['model']} {point['mode']} batch {point['batch']} {point['device']}{fixes}"
