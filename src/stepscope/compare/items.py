"""What is compared: results of one kind or another, reduced to items with the step times of each
process.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.bench.grid import NO_FIXES
from stepscope.record.errors import UsageError
from stepscope.record.timeline import Timeline
from stepscope.store.folder import read_run

_Series = tuple[float, ...]
"""Of one process: ms."""


def run_series(folder: Path) -> _Series:
    """The steady steps of a run outside its window; none where there are too few to tell."""
    from stepscope.measure.trial_folder import read_speed

    speed, _ = read_speed(folder, read_run(folder).start_ns)
    return speed.step_ms


def trace_series(document: Mapping[str, Any]) -> _Series:
    """The recorded steps of a trace or window."""
    return tuple((one["end_ns"] - one["start_ns"]) / 1e6 for one in document["steps"]["each"])


def _point_series(records: Sequence[Mapping[str, Any]], key: str) -> tuple[_Series, ...]:
    """Of one point of a bench: its calls in a row, or those timed alone, by process."""
    fine = [one["measured"] for one in records if one["key"] == key and one["status"] == "ok"]
    rows = (one.get("throughput_ms") or one["series_ms"] for one in fine)
    return tuple(tuple(row) for row in rows if row)


Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """One thing whose speed is known: a run has one, a bench one a point, a tune two."""

    key: str
    """Items of two results that have it in common belong together."""
    label: str
    """In words; "" where a result has only one."""
    series: tuple[_Series, ...]
    """Steady step times by process, ms."""
    samples: float | None
    """A step has, on average; None where nothing counts them."""
    what: str | None
    """training, inference or batches; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """One result. `document` is what its kind's `--json` prints."""

    kind: str
    """run, trace, tune or bench."""
    name: str
    document: Document
    items: tuple[Item, ...]
    timeline: Callable[[], Timeline | None] = lambda: None
    """The recorded window; None where there is none."""
    stacks: Callable[[], Timeline | None] = lambda: None
    """The window that was recorded with Python's stacks."""


def merge_items(sides: tuple[Side, ...]) -> dict[str, Item]:
    """Items of several results by key, their processes together."""
    found: dict[str, Item] = {}
    for item in (item for side in sides for item in side.items):
        before = found.get(item.key)
        if before is None:
            found[item.key] = item
        else:
            found[item.key] = Item(
                item.key, before.label, before.series + item.series,
                before.samples or item.samples, before.what or item.what,
            )  # fmt: skip
    return found


BASELINE_ITEM, FIXED_ITEM = "as it is", "with fixes"
_WHAT = {"train": "training", "infer": "inference", "generate": "inference"}
_KNOWN = ("training", "inference", "batches")
Records = Sequence[Mapping[str, Any]]


def run_items(document: Document, series: _Series) -> tuple[Item, ...]:
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
        series = _point_series(records, point["key"])
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
        _tuned(BASELINE_ITEM, bare, measured.get("baseline") or document.get("baseline") or {}),
        _tuned(FIXED_ITEM, fixed, measured.get("ladder") or {}),
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
    fixes = "" if point["variant"] in ("", NO_FIXES) else f" {point['variant']}"
    return f"{point['model']} {point['mode']} batch {point['batch']} {point['device']}{fixes}"
