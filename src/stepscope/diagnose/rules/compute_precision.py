"""Compute rules about number formats: fp32 products, odd sizes, a collapsed gradient scaler."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import drop_launch_cost
from stepscope.analyze.replay.known import (
    AUTOCAST_CPU_OPERATORS,
    REACHED_SHARE,
    factors_by_operator,
    input_dims,
    kernel_rows,
    roofline_rows,
    scale_operators,
)
from stepscope.analyze.timeline.roofline.rates import OperatorRate
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.rules.facts import (
    MATRIX,
    busy_ms,
    category_ms,
    config,
    fix_changes,
    flops_rates,
    gains_more,
    heaviest_kernels,
    host_and_device_close,
    operators_ms,
    operators_of,
    per_step,
    predict_gain,
    recorded_step_ms,
    replay_gains_nothing,
    rows_ms,
    run_steps,
    sites,
    step_share,
)
from stepscope.record.finding import (
    ChangeKind,
    Confidence,
    Effort,
    Evidence,
    Finding,
    FixRef,
    Place,
    Predicted,
)

_WIDE = ("fp32", "tf32")


def _wide_ms(case: Case) -> tuple[float, tuple[Place, ...]]:
    """Of matrix products in fp32 or TF32; by kernel names where no shapes were recorded."""
    rows = [r for r in roofline_rows(case) if r.category in MATRIX and r.dtype in _WIDE]
    if rows:
        return rows_ms(case, rows), operators_of(rows)
    if roofline_rows(case):
        return 0.0, ()
    plain = [k for k in kernel_rows(case) if k.category in MATRIX and k.tensor_core is False]
    names = {k.name for k in plain}
    return per_step(case, sum(k.total_ns for k in plain)), heaviest_kernels(
        case, lambda k: k.name in names
    )


def _lower_dtype(case: Case) -> str:
    """bf16, or fp16 where the device has no units for that."""
    known = flops_rates(case)
    return "fp16" if known and "bf16" not in known and "fp16" in known else "bf16"


def _best_precision(case: Case, wide: float) -> tuple[FixRef, Predicted | None, FixRef | None]:
    """Autocast, unless TF32 alone gains about as much."""
    amp = FixRef("amp", _lower_dtype(case))
    reason = f"{in_ms(wide)} ms of matrix products run in {amp.value}, on half the bytes"
    lower = predict_gain(case, fix_changes(case, "amp", amp.value), reason, 0.35)
    tf32 = FixRef("tf32", "on")
    quick = predict_gain(
        case, fix_changes(case, "tf32", "on"), "fp32 products run as TF32 on tensor cores", 0.35
    )
    if quick is not None and not gains_more(lower, quick, by=0.05):
        return tf32, quick, amp
    return amp, lower, tf32 if quick is not None else None


def _precision_advice(case: Case, fix: FixRef, other: FixRef | None) -> str:
    """What to write."""
    high = 'torch.set_float32_matmul_precision("high")'
    if fix.name == "tf32":
        return f"Call {high} to run fp32 products as TF32; autocast goes further."
    autocast = f"Run the model under torch.autocast in {_lower_dtype(case)}"
    return f"{autocast}." if other is None else f"{autocast}; {high} alone enables TF32."


def _with_launches_removed(case: Case, fix: FixRef) -> str:
    """What it gains once launches no longer limit the step."""
    changes = fix_changes(case, fix.name, fix.value)
    if changes is None:
        return ""
    both = predict_gain(case, [*changes, drop_launch_cost()], "", 0.3)
    if both is None:
        return ""
    return (
        " The host becomes the limit then: with a CUDA graph or torch.compile on top, the step "
        f"would be about {both.speedup:.1f}× faster."
    )


_LEAST_WIDE = 0.03
_LEAST_ON_CPU = 0.3


@rule("compute.low_precision", "Matrix products run in fp32 or TF32, where bf16 is faster.")
def low_precision(case: Case) -> Iterable[Finding]:
    """Matrix products and convolutions in fp32 or TF32 take 3% of the step.

    On a CPU only where `doctor` measured that bf16 is faster.
    """
    if case.device == "cpu":
        yield from _on_cpu(case)
        return
    wide, where = _wide_ms(case)
    busy = busy_ms(case)
    if busy is None or step_share(case, wide) < _LEAST_WIDE or config(case).autocast:
        return
    fix, predicted, other = _best_precision(case, wide)
    if replay_gains_nothing(case, fix_changes(case, fix.name, fix.value), predicted):
        return
    on = case.trace.tensor_cores.share if case.trace else None
    roofline = case.trace.roofline if case.trace else None
    mfu = roofline.step.mfu if roofline else None
    close = host_and_device_close(case)
    yield Finding(
        id=low_precision.id,
        title=_wide_title(case),
        why=(
            f"Tensor cores work {on or 0:.0%} of GPU time, and every tensor is twice as large as "
            f"in {_lower_dtype(case)}."
            + (f" The host is nearly the limit (GPU busy {in_ms(busy)} ms)." if close else "")
        ),
        advice=_precision_advice(case, fix, other)
        + (_with_launches_removed(case, fix) if close else ""),
        share=step_share(case, busy if close or busy > 0.5 * case.step_ms else wide),
        evidence=(
            Evidence("fp32 or TF32 products", wide, "ms"),
            Evidence("GPU busy", busy, "ms"),
            *((Evidence("of that on tensor cores", 100 * on, "%"),) if on is not None else ()),
            *((Evidence("MFU", 100 * mfu, "%"),) if mfu is not None else ()),
            *((Evidence("host and GPU time", "close together"),) if close else ()),
        ),
        where=(*sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=fix,
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH if predicted is not None else Confidence.MEDIUM,
    )


def _wide_title(case: Case) -> str:
    heaviest = max(("matmul", "convolution"), key=lambda kind: category_ms(case, kind))
    what = "convolutions leave" if heaviest == "convolution" else "arithmetic leaves"
    return f"fp32 {what} tensor cores idle"


def _on_cpu(case: Case) -> Iterable[Finding]:
    changes = fix_changes(case, "amp", "bf16")
    recorded = recorded_step_ms(case)
    products = operators_ms(case, AUTOCAST_CPU_OPERATORS)
    if changes is None or not recorded or products < _LEAST_ON_CPU * recorded:
        return
    reason = "matrix products run in bf16, at the rate measured on this CPU"
    yield Finding(
        id=low_precision.id,
        title="fp32 products on a CPU with fast bf16",
        why=(
            f"{products / recorded:.0%} of the step is fp32 matrix products; this CPU measured "
            "faster in bf16."
        ),
        advice='Run the model under torch.autocast("cpu", torch.bfloat16).',
        share=min(1.0, products / recorded),
        evidence=(Evidence("matrix products", products, "ms"),),
        where=sites(case, "forward"),
        predicted=predict_gain(case, changes, reason, 0.6),
        fix=FixRef("amp", "bf16"),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.LOW,
    )


_LEAST_ODD = 0.03
_TENSOR_CORE_DTYPES = ("bf16", "fp16", "tf32")
_USUAL_REACHED = 0.5  # of the ceiling: by well-shaped products, where the run has none
_SLOW = 0.8  # of what the others reach: an odd one that does as well is no loss
_SMALL_SIDE = 16


@rule("compute.odd_sizes", "Sizes that are not multiples of 8 rule out the fast kernels.")
def odd_sizes(case: Case) -> Iterable[Finding]:
    """Such products are slower than the program's others and take 3% of the step."""
    rows = [row for row in roofline_rows(case) if _on_tensor_cores(row)]
    odd = [row for row in rows if odd_dimensions(row)]
    even = [row for row in rows if not odd_dimensions(row)]
    reached = min(REACHED_SHARE, _mean_share(even) or _USUAL_REACHED)
    slow = [row for row in odd if (row.share or 0.0) < _SLOW * reached]
    spent = rows_ms(case, slow)
    if step_share(case, spent) < _LEAST_ODD:
        return
    keys = {(row.name, row.shape) for row in slow}

    def new_time(row: OperatorRate) -> float | None:
        ours = (row.name, row.shape) in keys
        return row.time_ns * (row.share or 0.0) / reached if ours else None

    change = scale_operators(factors_by_operator(roofline_rows(case), new_time))
    reason = f"{in_ms(spent)} ms of products with odd sizes run as fast as the others"
    changes = [change] if change is not None else None
    predicted = predict_gain(case, changes, reason, 0.4)
    if replay_gains_nothing(case, changes, predicted):
        return
    heavy = max(slow, key=lambda row: row.time_ns)
    sizes = ", ".join(str(n) for n in odd_dimensions(heavy)[:3])
    yield Finding(
        id=odd_sizes.id,
        title=f"Sizes are not multiples of 8: {sizes}"[:60],
        why=(
            f"Tensor cores load rows of 8 numbers: products with a side of {sizes} use slower"
            f" kernels, {rows_ms(case, [heavy]):.2f} ms per step at {heavy.share:.0%} of the"
            " limit."
        ),
        advice="Pad these sizes (vocabulary, channels, hidden width) to a multiple of 64, or 8.",
        share=step_share(case, spent),
        evidence=(
            Evidence("products with odd sizes", spent, "ms"),
            Evidence("their rate", 100 * (_mean_share(slow) or 0.0), "% of the limit"),
            Evidence("rate of the others", 100 * reached, "% of the limit"),
            Evidence("shape", str(heavy.shape)),
        ),
        where=(*sites(case, "forward")[:1], *operators_of(slow)),
        predicted=predicted,
        kind=ChangeKind.SEMANTIC,
        confidence=Confidence.MEDIUM,
    )


def odd_dimensions(row: OperatorRate) -> list[int]:
    """Sides of a product that are no multiple of 8, small ones (a few classes) aside."""
    inputs = input_dims(row)
    if row.category == "convolution":
        weights = [dims for dims in inputs if len(dims) == 4][-1:]
        sides = [n for dims in weights for n in dims[:2]]
    else:
        sides = [n for dims in inputs[-2:] for n in dims[-2:]]
    step = 4 if row.dtype == "tf32" else 8
    return list(dict.fromkeys(n for n in sides if n >= _SMALL_SIDE and n % step))


def _on_tensor_cores(row: OperatorRate) -> bool:
    matrix = row.category in ("matmul", "convolution") and row.dtype in _TENSOR_CORE_DTYPES
    return bool(matrix and row.share and row.ceiling == "compute")


def _mean_share(rows: list[OperatorRate]) -> float | None:
    """Weighted by time."""
    whole = sum(row.time_ns for row in rows)
    return sum((row.share or 0.0) * row.time_ns for row in rows) / whole if whole else None


_SEARCH_UPDATES = 16  # updates: from 65536 down to 1, which finding a scale may take
_LEAST_SKIPPED = 0.05
_COLLAPSED_SCALE = 1.0


@rule("compute.scaler_collapse", "The gradient scaler keeps skipping updates.")
def scaler_collapse(case: Case) -> Iterable[Finding]:
    """More updates were skipped than finding a scale takes, or the scale fell below 1."""
    scaler, count = config(case).scaler, run_steps(case)
    scales, skipped = (scaler.scales, scaler.skipped_updates) if scaler else ([], 0)
    lost = max(0, skipped - _SEARCH_UPDATES) / count if count else 0.0
    collapsed = bool(scales) and scales[-1] < _COLLAPSED_SCALE
    if not collapsed and lost < _LEAST_SKIPPED:
        return
    share = min(0.95, skipped / count) if count else 0.0
    reason = f"{skipped} of {count} updates are no longer skipped"
    yield Finding(
        id=scaler_collapse.id,
        title="The gradient scaler skips updates",
        why=(
            f"{skipped} of {count} updates were skipped because gradients overflowed in fp16"
            + (f"; the scale fell to {scales[-1]:g}." if scales else ".")
        ),
        advice=(
            "Use bf16, which needs no scaler; or find what overflows (a summed loss, masks of "
            "-inf) and clip after unscale_."
        ),
        share=share,
        evidence=(
            Evidence("updates skipped", skipped),
            Evidence("steps", count),
            *((Evidence("scale", scales[-1]),) if scales else ()),
        ),
        where=sites(case, "optimizer"),
        predicted=case.reach(case.step_ms * (1 - share), reason, 0.1) if share else None,
        fix=FixRef("amp", "bf16"),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
    )
