"""Compute rules about number formats: fp32 products, odd sizes, a collapsed gradient scaler."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import drop_launch_cost
from stepscope.analyze.replay.known import (
    AUTOCAST_CPU_OPERATORS,
    REACHED_SHARE,
    device_limits,
    factors_by_operator,
    input_dims,
    kernel_rows,
    roofline_rows,
    scale_operators,
)
from stepscope.analyze.timeline.roofline.ceilings import datasheet_ceilings
from stepscope.analyze.timeline.roofline.rates import OperatorRate
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.diagnose.rules import facts
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
from stepscope.record.timeline import DeviceInfo

_WIDE = ("fp32", "tf32")


def _wide_ms(case: Case) -> tuple[float, tuple[Place, ...]]:
    """Ms per step of matrix products in fp32 or TF32, by kernel names if no shapes were
    recorded."""
    rows = [r for r in roofline_rows(case) if r.category in facts.MATRIX and r.dtype in _WIDE]
    if rows:
        return facts.rows_ms(case, rows), facts.operators_of(rows)
    if roofline_rows(case):
        return 0.0, ()
    plain = [k for k in kernel_rows(case) if k.category in facts.MATRIX and k.tensor_core is False]
    spent = case.per_step(sum(k.total_ns for k in plain))
    return spent, tuple(Place(kernel=k.name) for k in plain[:3])


def _lower_dtype(case: Case) -> str:
    """bf16, or fp16 if the device has no units for bf16."""
    name = case.trace.source.device if case.trace else None
    known = device_limits(case).flops_per_s if case.device == "cuda" else {}
    if not known and name and (said := datasheet_ceilings(DeviceInfo(0, name))):
        known = said.flops_per_s
    return "fp16" if known and "bf16" not in known and "fp16" in known else "bf16"


def _best_precision(case: Case, wide: float) -> tuple[FixRef, Predicted | None, FixRef | None]:
    """Autocast, unless TF32 alone gains about as much, or autocast does not apply."""
    amp = FixRef("amp", _lower_dtype(case))
    reason = f"{in_ms(wide)} ms of matrix products run in {amp.value}, on half the bytes"
    lower = facts.predict_gain(case, facts.fix_changes(case, "amp", amp.value), reason, 0.35)
    tf32 = FixRef("tf32", "on")
    reason = "fp32 products run as TF32 on tensor cores"
    quick = facts.predict_gain(case, facts.fix_changes(case, "tf32", "on"), reason, 0.35)
    quick = quick if case.may_apply(tf32) else None
    if quick is not None and not case.may_apply(amp):
        return tf32, quick, None
    if quick is not None and not facts.gains_more(lower, quick, by=0.05):
        return tf32, quick, amp
    return amp, lower, tf32 if quick is not None else None


def _precision_advice(case: Case, fix: FixRef, other: FixRef | None, close: bool) -> str:
    """What to write; `close`: host and device are close, so also what it gains without launch
    limits."""
    high = 'torch.set_float32_matmul_precision("high")'
    autocast = f"Run the model under torch.autocast in {_lower_dtype(case)}"
    if fix.name == "tf32":
        further = "; autocast goes further" if other is not None else ""
        advice = f"Call {high} to run fp32 products as TF32{further}."
    else:
        advice = f"{autocast}." if other is None else f"{autocast}; {high} alone enables TF32."
    changes = facts.fix_changes(case, fix.name, fix.value) if close else None
    both = changes and facts.predict_gain(case, [*changes, drop_launch_cost()], "", 0.3)
    if not both:
        return advice
    return (
        f"{advice} The host becomes the limit then: with a CUDA graph or torch.compile on top, the "
        f"step would be about {both.speedup:.1f}× faster."
    )


_LEAST_WIDE = 0.03
_LEAST_ON_CPU = 0.3


@rule("compute.low_precision", "Matrix products run in fp32 or TF32, where bf16 is faster.")
def low_precision(case: Case) -> Iterable[Finding]:
    """Matrix products and convolutions in fp32 or TF32 take 3% of the step.

    On a CPU only where `doctor` measured that bf16 is faster.
    """
    if case.applied(FixRef("amp")):
        return
    if case.device == "cpu":
        yield from _on_cpu(case)
        return
    wide, where = _wide_ms(case)
    busy = facts.busy_ms(case)
    if busy is None or case.step_share(wide) < _LEAST_WIDE or case.config.autocast:
        return
    fix, predicted, other = _best_precision(case, wide)
    if facts.replay_gains_nothing(case, facts.fix_changes(case, fix.name, fix.value), predicted):
        return
    on = case.trace.tensor_cores.share if case.trace else None
    roofline = case.trace.roofline if case.trace else None
    mfu = roofline.step.mfu if roofline else None
    close = facts.host_and_device_close(case)
    convolves = facts.category_ms(case, "convolution") > facts.category_ms(case, "matmul")
    leave = "convolutions leave" if convolves else "arithmetic leaves"
    yield Finding(
        id=low_precision.id,
        title=f"fp32 {leave} tensor cores idle",
        why=f"Tensor cores work {on or 0:.0%} of GPU time, and every tensor is twice as large as "
        f"in {_lower_dtype(case)}."
        + (f" The host is nearly the limit (GPU busy {in_ms(busy)} ms)." if close else ""),
        advice=_precision_advice(case, fix, other, close),
        share=case.step_share(busy if close or busy > 0.5 * case.step_ms else wide),
        evidence=(
            Evidence("fp32 or TF32 products", wide, "ms"),
            Evidence("GPU busy", busy, "ms"),
            *((Evidence("of that on tensor cores", 100 * on, "%"),) if on is not None else ()),
            *((Evidence("MFU", 100 * mfu, "%"),) if mfu is not None else ()),
            *((Evidence("host and GPU time", "close together"),) if close else ()),
        ),
        where=(*facts.sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=fix,
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH if predicted is not None else Confidence.MEDIUM,
    )


def _on_cpu(case: Case) -> Iterable[Finding]:
    changes = facts.fix_changes(case, "amp", "bf16")
    products = facts.operators_ms(case, AUTOCAST_CPU_OPERATORS)
    share = case.recorded_share(products)
    if changes is None or share < _LEAST_ON_CPU:
        return
    reason = "matrix products run in bf16, at the rate measured on this CPU"
    yield Finding(
        id=low_precision.id,
        title="fp32 products on a CPU with fast bf16",
        why=f"{share:.0%} of the step is fp32 matrix products; this CPU measured faster in bf16.",
        advice='Run the model under torch.autocast("cpu", dtype=torch.bfloat16).',
        share=share,
        evidence=(Evidence("matrix products", products, "ms"),),
        where=facts.sites(case, "forward"),
        predicted=facts.predict_gain(case, changes, reason, 0.6),
        fix=FixRef("amp", "bf16"),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.LOW,
    )


_LEAST_ODD = 0.03
_TENSOR_CORE_DTYPES = ("bf16", "fp16", "tf32")
_USUAL_REACHED = 0.5  # of the ceiling: by well-shaped products, where the run has none
_SLOW = 0.8  # of the others' rate: an odd one that reaches it loses nothing
_SMALL_SIDE = 16


@rule("compute.odd_sizes", "Sizes that are not multiples of 8 rule out the fast kernels.")
def odd_sizes(case: Case) -> Iterable[Finding]:
    """Such products are slower than the program's others and take 3% of the step."""
    rows = [
        row
        for row in roofline_rows(case)
        if row.category in ("matmul", "convolution")
        and row.dtype in _TENSOR_CORE_DTYPES
        and row.share
        and row.ceiling == "compute"
    ]
    odd = [row for row in rows if odd_dimensions(row)]
    even = [row for row in rows if not odd_dimensions(row)]
    reached = min(REACHED_SHARE, _mean_share(even) or _USUAL_REACHED)
    slow = [row for row in odd if (row.share or 0.0) < _SLOW * reached]
    spent = facts.rows_ms(case, slow)
    share = case.step_share(spent)
    if share < _LEAST_ODD:
        return
    keys = {(row.name, row.shape) for row in slow}

    def new_time(row: OperatorRate) -> float | None:
        ours = (row.name, row.shape) in keys
        return row.time_ns * (row.share or 0.0) / reached if ours else None

    change = scale_operators(factors_by_operator(roofline_rows(case), new_time))
    reason = f"{in_ms(spent)} ms of products with odd sizes run as fast as the others"
    changes = [change] if change is not None else None
    predicted = facts.predict_gain(case, changes, reason, 0.4)
    if facts.replay_gains_nothing(case, changes, predicted):
        return
    heavy = max(slow, key=lambda row: row.time_ns)
    sizes = ", ".join(str(n) for n in odd_dimensions(heavy)[:3])
    yield Finding(
        id=odd_sizes.id,
        title=f"Sizes are not multiples of 8: {sizes}"[:60],
        why=f"Tensor cores load rows of 8 numbers: products with a side of {sizes} use slower "
        f"kernels, {case.per_step(heavy.time_ns):.2f} ms per step at {heavy.share:.0%} of the "
        "limit.",
        advice="Pad these sizes (vocabulary, channels, hidden width) to a multiple of 64, or 8.",
        share=share,
        evidence=(
            Evidence("products with odd sizes", spent, "ms"),
            Evidence("their rate", 100 * (_mean_share(slow) or 0.0), "% of the limit"),
            Evidence("rate of the others", 100 * reached, "% of the limit"),
            Evidence("shape", str(heavy.shape)),
        ),
        where=(*facts.sites(case, "forward")[:1], *facts.operators_of(slow)),
        predicted=predicted,
        kind=ChangeKind.SEMANTIC,
        confidence=Confidence.MEDIUM,
    )


def odd_dimensions(row: OperatorRate) -> list[int]:
    """Sides of a product that are not multiples of 8, except small ones (a few classes)."""
    inputs = input_dims(row)
    if row.category == "convolution":
        weights = [dims for dims in inputs if len(dims) == 4][-1:]
        sides = [n for dims in weights for n in dims[:2]]
    else:
        sides = [n for dims in inputs[-2:] for n in dims[-2:]]
    step = 4 if row.dtype == "tf32" else 8
    return list(dict.fromkeys(n for n in sides if n >= _SMALL_SIDE and n % step))


def _mean_share(rows: list[OperatorRate]) -> float | None:
    """Weighted by time."""
    whole = sum(row.time_ns for row in rows)
    return sum((row.share or 0.0) * row.time_ns for row in rows) / whole if whole else None


_SEARCH_UPDATES = 16  # updates that finding a scale may skip: from 65536 down to 1
_LEAST_SKIPPED = 0.05
_COLLAPSED_SCALE = 1.0


@rule("compute.scaler_collapse", "The gradient scaler keeps skipping updates.")
def scaler_collapse(case: Case) -> Iterable[Finding]:
    """More updates were skipped than finding a scale takes, or the scale fell below 1."""
    scaler, count = case.config.scaler, case.run_steps
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
        why=f"{skipped} of {count} updates were skipped because gradients overflowed in fp16"
        + (f"; the scale fell to {scales[-1]:g}." if scales else "."),
        advice="Use bf16, which needs no scaler; or find what overflows (a summed loss, masks of "
        "-inf) and clip after unscale_.",
        share=share,
        evidence=(
            Evidence("updates skipped", skipped),
            Evidence("steps", count),
            *((Evidence("scale", scales[-1]),) if scales else ()),
        ),
        where=facts.sites(case, "optimizer"),
        predicted=case.reach(case.step_ms * (1 - share), reason, 0.1) if share else None,
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
    )
