"""The records of a grid summed up: one flat record per point."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.cost import costs
from stepscope.bench.grid import label
from stepscope.bench.numbers import mean, most, total
from stepscope.bench.quality import not_applied, notes, unstable_why
from stepscope.bench.request import Request
from stepscope.bench.speed import noise, speed, speedup

Record = Mapping[str, Any]
Ceilings = Mapping[str, Mapping[str, float]]
"""TFLOP/s of matrix products by device and arithmetic."""


def summarize(
    records: Sequence[Record], request: Request, ceilings: Ceilings | None = None
) -> list[dict[str, Any]]:
    """One record per point, in the order in which points were first measured."""
    points = by_point(records)
    floor = noise(points)
    first: dict[tuple[Any, ...], list[Record]] = {}
    found = []
    for several in points:
        point = several[0]["point"]
        like = (point["model"], point["mode"], point["batch"], point["device"])
        base = first.setdefault(like, several)
        against = None if base is several else label(base[0]["point"]["fixes"])
        found.append(
            {
                **_point(several, request, (ceilings or {}).get(point["device"], {}), floor),
                "speedup": None if against is None else speedup(base, several, against, floor),
            }
        )
    return found


def by_point(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each point, in order of their rounds."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: int(one["round"])):
        found.setdefault(record["key"], []).append(record)
    return list(found.values())


def _point(
    several: Sequence[Record], request: Request, ceilings: Mapping[str, float], floor: float | None
) -> dict[str, Any]:
    point = several[0]["point"]
    fine = ok(several)
    measured = [record["measured"] for record in fine]
    last = several[-1]
    why = unstable_why(measured)
    quick = speed(measured, floor)
    return {
        "key": several[0]["key"],
        "model": point["model"],
        "mode": point["mode"],
        "batch": point["batch"],
        "device": point["device"],
        "fixes": point["fixes"],
        "variant": label(point["fixes"]),
        "settings": point["settings"],
        "status": "ok" if fine else last["status"],
        "why": None if fine else last["why"],
        "not_applied": not_applied(several),
        "rounds": len(fine),
        **quick,
        **_training(measured, quick["samples_per_s"]),
        **_generation(measured, quick["samples_per_s"]),
        "peak_memory_bytes": most(measured, "peak_memory_bytes"),
        "gpu_busy": mean([record["machine"] for record in fine], "gpu_busy"),
        **costs(fine, quick["samples_per_s"], request, ceilings),
        "first_calls_s": mean(measured, "first_calls_extra_s"),
        "clock": measured[0].get("clock") if measured else None,
        "parameters": measured[0].get("parameters") if measured else None,
        "unstable": why is not None,
        "unstable_why": why,
        "notes": notes(several),
    }


def ok(records: Sequence[Record]) -> list[Record]:
    """Those that measured something."""
    return [record for record in records if record["status"] == "ok"]


def _training(measured: Sequence[Record], samples_per_s: float | None) -> dict[str, Any]:
    train = [one for one in measured if one["mode"] == "train"]
    size = most(train, "train_samples")
    reached = [one.get("time_to_score_s") for one in train]
    return {
        "epoch_s": size / samples_per_s if size and samples_per_s else None,
        "loss": mean(train, "final_loss"),
        "score": mean(train, "final_score"),
        "score_name": train[0].get("score_name") if train else None,
        "steps": train[0].get("steps") if train else None,
        "time_to_score_s": mean(train, "time_to_score_s") if None not in reached else None,
    }


def _generation(measured: Sequence[Record], samples_per_s: float | None) -> dict[str, Any]:
    """Times to the first token and per further one; tokens per second also of whole sequences."""
    first = [ms for one in measured for ms in one.get("first_token_ms") or ()]
    each = [ms for one in measured for ms in one.get("token_ms") or ()]
    rate = mean(measured, "tokens_per_s")
    tokens = most(measured, "tokens_per_sample")
    if rate is None and tokens and samples_per_s:
        rate = tokens * samples_per_s
    return {
        "first_token_ms": total(first) / len(first) if first else None,
        "token_ms": total(each) / len(each) if each else None,
        "tokens_per_s": rate,
    }
