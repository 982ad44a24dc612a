"""Compute rules about kernels: convolution algorithms, layouts, attention, pointwise chains."""

from collections.abc import Iterable

from stepscope.analyze.replay.changes import Change, fuse_pointwise
from stepscope.analyze.replay.known import (
    attention_written_out,
    is_pointwise,
    roofline_rows,
    score_rows,
)
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
)

_LEAST_CONVOLUTION = 0.2
_MANY_SHAPES = 4  # cuDNN would benchmark every new shape
_NEAR_CEILING = 0.5  # of the ceiling: convolutions that reach this need no other algorithm


@rule(
    "compute.cudnn_benchmark_off",
    "cuDNN picks convolution algorithms by heuristic instead of benchmarking them.",
)
def cudnn_benchmark_off(case: Case) -> Iterable[Finding]:
    """Convolutions of constant shape take 20% of the step at under half of the device's limit."""
    if case.switches.cudnn_benchmark is not False:
        return
    if case.switches.cudnn_deterministic or case.switches.deterministic:
        return
    spent = facts.category_ms(case, "convolution")
    rows = [row for row in roofline_rows(case) if row.category == "convolution"]
    whole = sum(row.time_ns for row in rows)
    reached = sum((row.share or 0.0) * row.time_ns for row in rows) / whole if whole else 0
    convolved = [row for row in roofline_rows(case) if row.name == "aten::cudnn_convolution"]
    new_shapes = [row for row in convolved if row.calls < case.recorded_steps]  # not in every step
    share = case.step_share(spent)
    if share < _LEAST_CONVOLUTION or reached >= _NEAR_CEILING or len(new_shapes) >= _MANY_SHAPES:
        return
    changes = facts.fix_changes(case, "cudnn_benchmark")
    reason = f"{in_ms(spent)} ms of convolutions use their fastest algorithms"
    predicted = facts.predict_gain(case, changes, reason, 0.9)
    if facts.replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=cudnn_benchmark_off.id,
        title="cuDNN does not benchmark its algorithms",
        why=f"Convolutions take {share:.0%} of the step at {reached:.0%} of the GPU's limit; "
        "their shapes are constant, so one benchmark pays off.",
        advice="Set torch.backends.cudnn.benchmark = True at the start.",
        share=share,
        evidence=(
            Evidence("convolutions", spent, "ms"),
            Evidence("of the GPU's limit", 100 * reached, "%"),
        ),
        where=(*facts.sites(case, "forward")[:1], *facts.operators_of(rows, 2)),
        predicted=predicted,
        fix=FixRef("cudnn_benchmark"),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.LOW,
    )


_LEAST_LAYOUT = 0.03


@rule("compute.layout_changes", "Kernels that only convert tensors between NCHW and NHWC.")
def layout_changes(case: Case) -> Iterable[Finding]:
    """Layout conversions around convolutions take 3% of the step."""
    spent, busy = facts.category_ms(case, "layout change"), facts.busy_ms(case)
    share = case.step_share(spent)
    if busy is None or share < _LEAST_LAYOUT or not facts.category_ms(case, "convolution"):
        return
    already = any(m.memory_format == "channels_last" for m in case.config.models)
    changes = facts.fix_changes(case, "channels_last")
    predicted = facts.predict_gain(case, changes, f"saves {in_ms(spent)} ms of layout changes", 0.4)
    if facts.replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=layout_changes.id,
        title="Every convolution converts NCHW to NHWC",
        why="Tensor cores convolve in NHWC, but the tensors are NCHW: "
        f"{facts.category_count(case, 'layout change'):,.0f} kernels per step only convert them, "
        f"{share:.0%} of its time.",
        advice=(
            "The model is already channels_last: convert its inputs with "
            "x.to(memory_format=torch.channels_last), and look for .contiguous() and .view()."
            if already
            else "Convert model and inputs to memory_format=torch.channels_last."
        ),
        share=share,
        evidence=(
            Evidence("layout changes", spent, "ms"),
            Evidence("of GPU time", 100 * spent / busy if busy else 0.0, "%"),
            Evidence("kernels per step", facts.category_count(case, "layout change")),
        ),
        where=(*facts.sites(case, "forward")[:1], *facts.heaviest_kernels(case, "layout change")),
        predicted=predicted,
        fix=None if already else FixRef("channels_last"),
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.MEDIUM,
    )


_LEAST_ATTENTION = 0.05
_CPU_ATTENTION = r"^aten::(bmm|baddbmm|_softmax|_softmax_backward_data|masked_fill_?)$"


@rule("compute.naive_attention", "Unfused attention: the scores go through memory several times.")
def naive_attention(case: Case) -> Iterable[Finding]:
    """A softmax over square scores between two matrix products takes 5% of the step."""
    if case.device == "cpu":
        found = facts.operators_ms(case, _CPU_ATTENTION) if attention_written_out(case) else 0.0
        share = case.recorded_share(found)
        spent = share * case.step_ms
        where: tuple[Place, ...] = (Place(operator="aten::_softmax"),)
    else:
        rows = score_rows(roofline_rows(case))
        spent, where = facts.rows_ms(case, rows), facts.operators_of(rows)
        share = case.step_share(spent)
    if share < _LEAST_ATTENTION:
        return
    changes = facts.fix_changes(case, "sdpa")
    reason = f"{in_ms(spent)} ms of score kernels become one fused kernel"
    predicted = facts.predict_gain(case, changes, reason, 0.4)
    if facts.replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=naive_attention.id,
        title="Attention is not fused",
        why="Scores, mask, softmax and product each read and write a matrix quadratic in the "
        f"sequence length: {share:.0%} of the step.",
        advice="Call torch.nn.functional.scaled_dot_product_attention (with is_causal or "
        "attn_mask), or pass need_weights=False to MultiheadAttention.",
        share=share,
        evidence=(Evidence("kernels on the scores", spent, "ms"),),
        where=(*facts.sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=FixRef("sdpa"),
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.HIGH if case.device == "cuda" else Confidence.MEDIUM,
    )


_LEAST_POINTWISE = 0.15
_CHAIN = 3.0  # pointwise operators to each product: layers have one or two
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution")
_OF_ADAM = ("aten::sqrt", "aten::div")


@rule("compute.unfused_pointwise", "Unfused pointwise operators, each a separate pass over memory.")
def unfused_pointwise(case: Case) -> Iterable[Finding]:
    """Pointwise operators take 15% of the step, three or more per matrix product, uncompiled."""
    if facts.is_compiled(case):
        return
    spent, count, products, where = _pointwise(case)
    share = case.step_share(spent)
    if share < _LEAST_POINTWISE or count < _CHAIN * max(products, 1.0):
        return
    changes: list[Change] | None = [fuse_pointwise()]
    if case.device == "cpu":
        changes = facts.fix_changes(case, "compile", "default")
    reason = f"{in_ms(spent)} ms of chains become one read and one write each"
    predicted = facts.predict_gain(case, changes, reason, 0.4)
    if facts.replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=unfused_pointwise.id,
        title="Pointwise operators are not fused",
        why=f"{count:,.0f} pointwise operators per step take {share:.0%} of it: each reads its "
        "input from memory and writes its result back.",
        advice="Compile the model (torch.compile), or use the fused operator (gelu, silu, …).",
        share=share,
        evidence=(
            Evidence("pointwise", spent, "ms"),
            Evidence("pointwise operators per step", count),
            Evidence("matrix products per step", products),
        ),
        where=(*facts.sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=FixRef("compile", "default"),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.NUMERIC,
        confidence=Confidence.MEDIUM,
    )


def _pointwise(case: Case) -> tuple[float, float, float, tuple[Place, ...]]:
    """Per step: ms and number of pointwise operators, number of products; and the heaviest.

    On the CPU only the program's own: in-place ones, and Adam's, belong to the optimizer.
    """
    if case.device != "cpu":
        where = facts.heaviest_kernels(case, "pointwise")
        count = facts.category_count(case, "pointwise")
        products = facts.category_count(case, *facts.MATRIX)
        return facts.category_ms(case, "pointwise"), count, products, where
    known = facts.operators(case)
    adams = _OF_ADAM if any(o.name == "aten::addcdiv_" for o in known) else ()
    pointwise = [o for o in known if is_pointwise(o.name) and not o.name.endswith("_")]
    ours = [o for o in pointwise if o.name not in adams]
    inside = case.per_step(sum(o.self_ns for o in ours))
    spent = inside / case.recorded_ms * case.step_ms if case.recorded_ms else 0.0
    steps = max(1, case.recorded_steps)
    products = sum(o.count for o in known if o.name in _PRODUCTS) / steps
    where = tuple(Place(operator=o.name) for o in ours[:2])
    return spent, sum(o.count for o in ours) / steps, products, where
