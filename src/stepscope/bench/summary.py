"""The records of a grid summed up, one summary per point: speed, cost, how far to trust it."""

import os
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Final

from stepscope.bench.grid import BenchRequest, variant_label
from stepscope.bench.results import (
    BenchResult,
    PointStatus,
    PointSummary,
    UnappliedFix,
)
from stepscope.bench.speed import max_known, mean_known, point_speed, process_noise, speedup, total
from stepscope.record.version import __version__
from stepscope.stats.stability import why_unstable

Record = Mapping[str, Any]
_J_PER_KWH = 3.6e6
_MILLION = 1e6


def _point_costs(
    records: Sequence[Record],
    samples_per_s: float | None,
    request: BenchRequest,
    ceilings: Mapping[str, float],
) -> dict[str, Any]:
    """Of the records that measured something; None where a part is not known.

    `mfu` is the share of what this device's matrix products reach in the same arithmetic.
    """
    measured = [record["measured"] for record in records]
    flops = max_known(measured, "flops_per_sample")
    kinds = {one["arithmetic"] for one in measured}
    arithmetic = kinds.pop() if len(kinds) == 1 else None
    tflops = flops * samples_per_s / 1e12 if flops and samples_per_s else None
    ceiling = ceilings.get(arithmetic or "")
    joules = _joules_per_sample(records)
    carbon, price = request.carbon_intensity, request.price_per_hour
    grams = None if joules is None or carbon is None else joules / _J_PER_KWH * carbon
    return {
        "flops_per_sample": flops,
        "tflops_per_s": tflops,
        "mfu": tflops / ceiling if tflops and ceiling else None,
        "arithmetic": arithmetic,
        "energy_j_per_sample": joules,
        "carbon_g_per_million": None if grams is None else grams * _MILLION,
        "cost_per_million": (
            price / 3600 / samples_per_s * _MILLION if price is not None and samples_per_s else None
        ),
    }


def _joules_per_sample(records: Sequence[Record]) -> float | None:
    """Over all sections whose energy is known."""
    counted = [r for r in records if r["machine"]["energy_j"] is not None]
    samples = sum(record["measured"]["samples"] for record in counted)
    return total(r["machine"]["energy_j"] for r in counted) / samples if samples else None


_NEIGHBOURS: Final = 0.1  # share of the machine's cores that others may keep busy unmentioned


def _unstable_why(measured: Sequence[Record]) -> str | None:
    """Why the times of a point are not to be relied on; None if they are."""
    if not measured:
        return None
    if not all(one["warmup"]["settled"] for one in measured):
        return "still warming up when measured"
    processes = [one["series_ms"] for one in measured if one["series_ms"]]
    return why_unstable(processes) if processes else "too few calls"


def _not_applied(records: Sequence[Record]) -> tuple[UnappliedFix, ...]:
    """The fixes that were asked for and did not apply, with their reasons."""
    return tuple(
        UnappliedFix(fix["name"], "; ".join(fix["reasons"]) or "no effect")
        for fix in records[-1]["fixes"]
        if fix["state"] == "not applicable"
    )


def _point_notes(records: Sequence[Record]) -> list[str]:
    """What a reader should know of the circumstances, each once."""
    fine = [record for record in records if record["status"] == "ok"]
    found = [note for record in fine for note in record["measured"].get("notes", ())]
    for record in fine:
        measured, machine = record["measured"], record["machine"]
        found += [f"throttled: {reason}" for reason in machine["throttle"]]
        if machine["other_processes"]:
            found.append("other processes used the GPU")
        cores = os.cpu_count() or 1
        if (machine.get("other_cores") or 0) > max(0.5, _NEIGHBOURS * cores):
            found.append("other processes kept the CPU busy")
        if measured.get("flops_why_not"):
            found.append(f"FLOPs not counted: {measured['flops_why_not']}")
    if fine:
        found += [
            f"process {record['round']} left out: {record['why'] or record['status']}"
            for record in records
            if record["status"] != "ok"
        ]
    return list(dict.fromkeys(found))


_Ceilings = Mapping[str, Mapping[str, float]]
"""TFLOP/s of matrix products by device and arithmetic."""


def summarize(
    records: Sequence[Record], request: BenchRequest, ceilings: _Ceilings | None = None
) -> tuple[PointSummary, ...]:
    """One summary per point, in the order in which points were first measured."""
    points = by_point(records)
    floor = process_noise(points)
    first: dict[tuple[Any, ...], list[Record]] = {}
    found = []
    for several in points:
        point = several[0]["point"]
        like = (point["model"], point["mode"], point["batch"], point["device"])
        base = first.setdefault(like, several)
        peaks = (ceilings or {}).get(point["device"], {})
        found.append(_point(several, base, request, peaks, floor))
    return tuple(found)


def by_point(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each point, in order of their rounds."""
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: int(one["round"])):
        found.setdefault(record["key"], []).append(record)
    return list(found.values())


def _point(
    several: Sequence[Record],
    base: Sequence[Record],
    request: BenchRequest,
    ceilings: Mapping[str, float],
    floor: float | None,
) -> PointSummary:
    """`base`: the variant it is compared with."""
    point, last, fine = several[0]["point"], several[-1], successful(several)
    measured = [record["measured"] for record in fine]
    why = _unstable_why(measured)
    quick = point_speed(measured, floor)
    against = variant_label(base[0]["point"]["fixes"])
    return PointSummary(
        key=several[0]["key"],
        model=point["model"],
        mode=point["mode"],
        batch=point["batch"],
        device=point["device"],
        fixes=tuple(point["fixes"]),
        variant=variant_label(point["fixes"]),
        settings=point["settings"],
        status=PointStatus.OK if fine else PointStatus(last["status"]),
        why=None if fine else last["why"],
        not_applied=_not_applied(several),
        rounds=len(fine),
        **quick,
        **_training(measured, quick["samples_per_s"]),
        **_generation(measured, quick["samples_per_s"]),
        peak_memory_bytes=max_known(measured, "peak_memory_bytes"),
        gpu_busy=mean_known([record["machine"] for record in fine], "gpu_busy"),
        **_point_costs(fine, quick["samples_per_s"], request, ceilings),
        first_calls_s=mean_known(measured, "first_calls_extra_s"),
        clock=measured[0].get("clock") if measured else None,
        parameters=measured[0].get("parameters") if measured else None,
        unstable=why is not None,
        unstable_why=why,
        notes=tuple(_point_notes(several)),
        speedup=None if base is several else speedup(base, several, against, floor),
    )


def successful(records: Sequence[Record]) -> list[Record]:
    """Those that measured something."""
    return [record for record in records if record["status"] == "ok"]


def _training(measured: Sequence[Record], samples_per_s: float | None) -> dict[str, Any]:
    train = [one for one in measured if one["mode"] == "train"]
    size = max_known(train, "train_samples")
    reached = [one.get("time_to_score_s") for one in train]
    return {
        "epoch_s": size / samples_per_s if size and samples_per_s else None,
        "loss": mean_known(train, "final_loss"),
        "score": mean_known(train, "final_score"),
        "score_name": train[0].get("score_name") if train else None,
        "steps": train[0].get("steps") if train else None,
        "time_to_score_s": mean_known(train, "time_to_score_s") if None not in reached else None,
    }


def _generation(measured: Sequence[Record], samples_per_s: float | None) -> dict[str, Any]:
    """Times to the first token and per further one; tokens per second also of whole sequences."""
    first = [ms for one in measured for ms in one.get("first_token_ms") or ()]
    each = [ms for one in measured for ms in one.get("token_ms") or ()]
    rate = mean_known(measured, "tokens_per_s")
    tokens = max_known(measured, "tokens_per_sample")
    if rate is None and tokens and samples_per_s:
        rate = tokens * samples_per_s
    return {
        "first_token_ms": total(first) / len(first) if first else None,
        "token_ms": total(each) / len(each) if each else None,
        "tokens_per_s": rate,
    }


def bench_result(
    request: BenchRequest,
    records: Sequence[Record],
    ceilings: _Ceilings,
    command: str,
    started: str,
    notes: Sequence[str] = (),
    **more: Any,
) -> BenchResult:
    """All of it; `more` are the parts of a study or subcommand."""
    from msgspec import to_builtins

    from stepscope.hardware.machine import describe_machine

    machine = describe_machine()
    parts = {
        "noise_floor": process_noise(by_point(records)),
        "points": summarize(records, request, ceilings),
        **more,
    }
    return BenchResult(
        machine=to_builtins(machine),
        versions={
            "python": platform.python_version(),
            "torch": machine.torch.version if machine.torch else None,
            "stepscope": __version__,
        },
        command=command,
        started=started,
        request=request.to_json(),
        notes=tuple(notes),
        **parts,
    )


def made_with(devices: Sequence[str]) -> dict[str, Any]:
    """What results must have in common to stand in one table: stepscope, torch, each device."""
    from stepscope.hardware.ceilings import device_key
    from stepscope.hardware.gpus import visible_gpu_index

    gpu = visible_gpu_index(os.environ) if "cuda" in devices else None
    keys = {device: device_key(device, gpu if device == "cuda" else None) for device in devices}
    return {"stepscope": __version__, "python": platform.python_version(), **keys}
