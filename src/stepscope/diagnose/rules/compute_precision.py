"""Compute rules about number formats: fp32 products, odd sizes, a collapsed gradient scaler."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import drop_launch_cost
from stepscope.analyze.replay.known import (
    AUTOCAST_CPU_OPERATORS,
    REACHED_SHARE,
    RooflineRow,
    factors_by_operator,
    input_dims,
    scale_operators,
)
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules.facts import (
    MATRIX,
    Row,
    busy_ms,
    config,
    flops_rates,
    gains_more,
    heaviest_kernels,
    host_and_device_close,
    operators_ms,
    operators_of,
    per_step,
    predict_gain,
    recorded_kernels,
    recorded_step_ms,
    replay_gains_nothing,
    roofline_rows,
    rows_ms,
    sites,
    step_share,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Evidence, Finding, FixRef, Place, Predicted

_WIDE = ("fp32", "tf32")


def _wide_ms(case: Case) -> tuple[float, tuple[Place, ...]]:
    """Of matrix products in fp32 or TF32; by kernel names where no shapes were recorded."""
    rows = [r for r in roofline_rows(case) if r["category"] in MATRIX and r["dtype"] in _WIDE]
    if rows:
        return rows_ms(case, rows), operators_of(rows)
    known = (case.trace or {}).get("roofline")
    plain = [
        k for k in recorded_kernels(case) if k["category"] in MATRIX and k["tensor_core"] is False
    ]
    if known is not None and known.get("shapes"):
        return 0.0, ()
    names = {k["name"] for k in plain}
    return per_step(case, sum(k["total_ns"] for k in plain)), heaviest_kernels(
        case, lambda k: k["name"] in names
    )


def _lower_dtype(case: Case) -> str:
    """bf16, or fp16 where the device has no units for that."""
    known = flops_rates(case)
    return "fp16" if known and "bf16" not in known and "fp16" in known else "bf16"


def _best_precision(case: Case, wide: float) -> tuple[FixRef, Predicted | None, FixRef | None]:
    """Autocast, unless TF32 alone gains about as much."""
    amp = FixRef("amp", _lower_dtype(case))
    words = f"{in_ms(wide)} ms of products run at {amp.value}'s rate, on half the bytes"
    lower = predict_gain(case, fix_named("amp").predict(amp.value, case), words, 0.35)
    tf32 = FixRef("tf32", "on")
    quick = predict_gain(
        case,
        fix_named("tf32").predict("on", case),
        "fp32 products run in TF32 on tensor cores",
        0.35,
    )
    if quick is not None and not gains_more(lower, quick, by=0.05):
        return tf32, quick, amp
    return amp, lower, tf32 if quick is not None else None


def _precision_advice(case: Case, fix: FixRef, other: FixRef | None) -> str:
    """What to write."""
    autocast = f"Call the model under torch.autocast in {_lower_dtype(case)}"
    tf32 = 'torch.set_float32_matmul_precision("high") alone lets fp32 products use TF32'
    if fix.name == "tf32":
        return f"{tf32.replace(' alone', '')}; autocast would go further."
    return f"{autocast}." if other is None else f"{autocast}; {tf32}."


def _with_launches_removed(case: Case, fix: FixRef) -> str:
    """What it brings once the host is no longer in the way."""
    changes = fix_named(fix.name).predict(fix.value, case)
    if changes is None:
        return ""
    both = predict_gain(case, [*changes, drop_launch_cost()], "both", 0.3)
    if both is None:
        return ""
    return (
        " The host is soon the limit then: with a CUDA graph or torch.compile besides, the step "
        f"would be about {both.speedup:.1f} times as fast."
    )


_LEAST_WIDE = 0.03
_LEAST_ON_CPU = 0.3


def _low_precision(case: Case) -> Iterable[Finding]:
    """Where products and convolutions in fp32 or TF32 take 3% of the step or more.

    On a processor only where `doctor` measured that bf16 is surely faster there.
    """
    if case.device == "cpu":
        yield from _on_cpu(case)
        return
    wide, where = _wide_ms(case)
    busy = busy_ms(case)
    if busy is None or step_share(case, wide) < _LEAST_WIDE or config(case).get("autocast"):
        return
    fix, predicted, other = _best_precision(case, wide)
    if replay_gains_nothing(case, fix_named(fix.name).predict(fix.value, case), predicted):
        return
    cores = (case.trace or {}).get("tensor_cores") or {}
    on = cores.get("share")
    step = ((case.trace or {}).get("roofline") or {}).get("step") or {}
    close = host_and_device_close(case)
    yield Finding(
        id=LOW_PRECISION.id,
        title="fp32 arithmetic leaves the tensor cores idle",
        why=(
            f"Models and data are in fp32: tensor cores work in {on or 0:.0%} of the GPU's time, "
            f"and everything it reads and writes is twice as large as in {_lower_dtype(case)}."
            + (
                f" Host and device are close together (the GPU works {in_ms(busy)} ms)."
                if close
                else ""
            )
        ),
        advice=_precision_advice(case, fix, other)
        + (_with_launches_removed(case, fix) if close else ""),
        share=step_share(case, busy if close or busy > 0.5 * case.step_ms else wide),
        evidence=(
            Evidence("products in fp32 or TF32", wide, "ms"),
            Evidence("GPU busy", busy, "ms"),
            *((Evidence("of that on tensor cores", 100 * on, "%"),) if on is not None else ()),
            *((Evidence("MFU", 100 * step["mfu"], "%"),) if step.get("mfu") is not None else ()),
            *((Evidence("host and device", "close together"),) if close else ()),
        ),
        where=(*sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=fix,
        effort="one line",
        kind="numeric",
        confidence="high" if predicted is not None else "medium",
    )


LOW_PRECISION = Rule(
    id="compute.low_precision",
    cause="Matrix products run in fp32 or TF32, where bf16 would be faster.",
    find=_low_precision,
)


def _on_cpu(case: Case) -> Iterable[Finding]:
    changes = fix_named("amp").predict("bf16", case)
    recorded = recorded_step_ms(case)
    products = operators_ms(case, AUTOCAST_CPU_OPERATORS)
    if changes is None or not recorded or products < _LEAST_ON_CPU * recorded:
        return
    words = "matrix products run in bf16, as fast as measured on this processor"
    yield Finding(
        id=LOW_PRECISION.id,
        title="fp32 products where this processor has fast bf16",
        why=(
            f"{products / recorded:.0%} of the step are matrix products in fp32; this processor "
            "was measured to be faster in bf16."
        ),
        advice='Call the model under torch.autocast("cpu", torch.bfloat16).',
        share=min(1.0, products / recorded),
        evidence=(Evidence("matrix products", products, "ms"),),
        where=sites(case, "forward"),
        predicted=predict_gain(case, changes, words, 0.6),
        fix=FixRef("amp", "bf16"),
        effort="one line",
        kind="numeric",
        confidence="low",
    )


_LEAST_ODD = 0.03
_TENSOR_CORE_DTYPES = ("bf16", "fp16", "tf32")
_USUAL_REACHED = (
    0.5  # of the ceiling: what well-shaped products reach where none is there to compare with
)
_SLOW = 0.8  # of what the others reach: an odd one that does as well is no loss
_SMALL_SIDE = 16


def _odd_sizes(case: Case) -> Iterable[Finding]:
    """Where such products are slower than the program's others and take 3% of the step or more."""
    rows = [row for row in roofline_rows(case) if _on_tensor_cores(row)]
    odd = [row for row in rows if odd_dimensions(row)]
    even = [row for row in rows if not odd_dimensions(row)]
    reached = min(REACHED_SHARE, _mean_share(even) or _USUAL_REACHED)
    slow = [row for row in odd if row["share"] < _SLOW * reached]
    spent = rows_ms(case, slow)
    if step_share(case, spent) < _LEAST_ODD:
        return
    keys = {(row["name"], row["shape"]) for row in slow}

    def new_time(row: Row) -> float | None:
        ours = (row["name"], row["shape"]) in keys
        return float(row["time_ns"] * row["share"] / reached) if ours else None

    change = scale_operators(factors_by_operator(roofline_rows(case), new_time))
    words = f"{in_ms(spent)} ms of odd products get as near the ceiling as the others"
    changes = [change] if change is not None else None
    predicted = predict_gain(case, changes, words, 0.4)
    if replay_gains_nothing(case, changes, predicted):
        return
    heavy = max(slow, key=lambda row: row["time_ns"])
    sizes = ", ".join(str(n) for n in odd_dimensions(heavy)[:3])
    yield Finding(
        id=ODD_SIZES.id,
        title=f"Sizes that are no multiple of 8: {sizes}"[:60],
        why=(
            f"Tensor cores load rows of 8 numbers: products with a side of {sizes} take slower "
            f"kernels, {rows_ms(case, [heavy]):.2f} ms a step at {heavy['share']:.0%} of the limit."
        ),
        advice="Pad these sizes (vocabulary, channels, hidden width) to a multiple of 64, or of 8.",
        share=step_share(case, spent),
        evidence=(
            Evidence("odd products", spent, "ms"),
            Evidence("reached by them", 100 * (_mean_share(slow) or 0.0), "%"),
            Evidence("reached by the others", 100 * reached, "%"),
            Evidence("shape", str(heavy["shape"])),
        ),
        where=(*sites(case, "forward")[:1], *operators_of(slow)),
        predicted=predicted,
        effort="some lines",
        kind="semantic",
        confidence="medium",
    )


ODD_SIZES = Rule(
    id="compute.odd_sizes",
    cause="Sizes that are no multiple of 8 keep products from the fast kernels.",
    find=_odd_sizes,
)


def odd_dimensions(row: RooflineRow) -> list[int]:
    """Sides of a product that are no multiple of 8, small ones (a few classes) aside."""
    inputs = input_dims(row)
    if row["category"] == "convolution":
        weights = [dims for dims in inputs if len(dims) == 4][-1:]
        sides = [n for dims in weights for n in dims[:2]]
    else:
        sides = [n for dims in inputs[-2:] for n in dims[-2:]]
    step = 4 if row["dtype"] == "tf32" else 8
    return list(dict.fromkeys(n for n in sides if n >= _SMALL_SIDE and n % step))


def _on_tensor_cores(row: Row) -> bool:
    matrix = row["category"] in ("matmul", "convolution") and row["dtype"] in _TENSOR_CORE_DTYPES
    return bool(matrix and row.get("share") and row.get("ceiling") == "compute")


def _mean_share(rows: list[RooflineRow]) -> float | None:
    """Weighted by time."""
    whole = sum(row["time_ns"] for row in rows)
    return sum(row["share"] * row["time_ns"] for row in rows) / whole if whole else None


_SEARCH_UPDATES = 16  # updates: from 65536 down to 1, which finding a scale may take
_LEAST_SKIPPED = 0.05
_COLLAPSED_SCALE = 1.0


def _scaler_collapse(case: Case) -> Iterable[Finding]:
    """Where more updates were skipped than finding a scale takes, or the scale fell below 1."""
    scaler = config(case).get("scaler") or {}
    scales = [float(scale) for scale in scaler.get("scales") or []]
    skipped = int(scaler.get("skipped_updates") or 0)
    count = int(((case.show or {}).get("steps") or {}).get("count") or 0)
    lost = max(0, skipped - _SEARCH_UPDATES) / count if count else 0.0
    collapsed = bool(scales) and scales[-1] < _COLLAPSED_SCALE
    if not collapsed and lost < _LEAST_SKIPPED:
        return
    share = min(0.95, skipped / count) if count else 0.0
    words = f"{skipped} of {count} steps are no longer for nothing"
    yield Finding(
        id=SCALER_COLLAPSE.id,
        title="The gradient scaler throws updates away",
        why=(
            f"{skipped} of {count} updates were skipped because gradients overflowed in fp16"
            + (f", and the scale fell to {scales[-1]:g}." if scales else ".")
        ),
        advice=(
            "Use bf16, which needs no scaler; else look for what overflows (a loss summed instead "
            "of averaged, masks of -inf) and clip after unscale_."
        ),
        share=share,
        evidence=(
            Evidence("updates skipped", skipped),
            Evidence("steps", count),
            *((Evidence("scale", scales[-1]),) if scales else ()),
        ),
        where=sites(case, "optimizer"),
        predicted=case.reach(case.step_ms * (1 - share), words, 0.1) if share else None,
        fix=FixRef("amp", "bf16"),
        effort="one line",
        kind="numeric",
        confidence="high",
    )


SCALER_COLLAPSE = Rule(
    id="compute.scaler_collapse",
    cause="The gradient scaler throws updates away, again and again.",
    find=_scaler_collapse,
)
