"""What a sample costs: arithmetic, energy, carbon, money."""

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.bench.numbers import most, total
from stepscope.bench.request import Request

Record = Mapping[str, Any]
_J_PER_KWH = 3.6e6
_MILLION = 1e6


def costs(
    records: Sequence[Record],
    samples_per_s: float | None,
    request: Request,
    ceilings: Mapping[str, float],
) -> dict[str, Any]:
    """Of the records that measured something; None where a part is not known.

    `mfu` is the share of what this device's matrix products reach in the same arithmetic.
    """
    measured = [record["measured"] for record in records]
    flops = most(measured, "flops_per_sample")
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
