"""Compute rules about kernels: convolution algorithms, layouts, attention, pointwise chains."""

from collections.abc import Iterable
from typing import Any

from stepscope.analyze.replay.changes import fuse_pointwise
from stepscope.analyze.replay.known import attention_written_out, is_pointwise, score_rows
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules.facts import (
    MATRIX,
    busy_ms,
    category_count,
    category_ms,
    config,
    heaviest_kernels,
    is_compiled,
    operators,
    operators_ms,
    operators_of,
    per_step,
    predict_gain,
    recorded_share,
    recorded_step_ms,
    recorded_steps,
    replay_gains_nothing,
    roofline_rows,
    rows_ms,
    sites,
    step_share,
    switches,
)
from stepscope.fixes.registry import fix_named
from stepscope.record.finding import Evidence, Finding, FixRef, Place

_LEAST_CONVOLUTION = 0.2
_MANY_SHAPES = 4  # every new one would be tried first
_NEAR_CEILING = 0.5  # of the ceiling: convolutions that reach it need no other algorithm


def _cudnn_benchmark_off(case: Case) -> Iterable[Finding]:
    """Where convolutions of constant shapes take a fifth of the step, far from the ceiling."""
    if switches(case).get("cudnn_benchmark") is not False:
        return
    if switches(case).get("cudnn_deterministic") or switches(case).get("deterministic"):
        return
    spent = category_ms(case, "convolution")
    rows = [row for row in roofline_rows(case) if row["category"] == "convolution"]
    whole = sum(row["time_ns"] for row in rows)
    reached = (
        sum((row.get("share") or 0.0) * row["time_ns"] for row in rows) / whole if whole else 0
    )
    if (
        step_share(case, spent) < _LEAST_CONVOLUTION
        or reached >= _NEAR_CEILING
        or _shapes_change(case)
    ):
        return
    changes = fix_named("cudnn_benchmark").predict(None, case)
    words = f"the {in_ms(spent)} ms of convolutions take their fastest algorithms"
    predicted = predict_gain(case, changes, words, 0.9)
    if replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=CUDNN_BENCHMARK_OFF.id,
        title="cuDNN does not look for the fastest algorithms",
        why=(
            f"Convolutions take {step_share(case, spent):.0%} of the step at {reached:.0%} of what"
            " the "
            "GPU could do; their shapes do not change, so trying the algorithms once would pay."
        ),
        advice="Set torch.backends.cudnn.benchmark = True at the beginning.",
        share=step_share(case, spent),
        evidence=(
            Evidence("convolutions", spent, "ms"),
            Evidence("of the attainable rate", 100 * reached, "%"),
        ),
        where=(*sites(case, "forward")[:1], *operators_of(rows, 2)),
        predicted=predicted,
        fix=FixRef("cudnn_benchmark"),
        effort="one line",
        kind="numeric",
        confidence="low",
    )


CUDNN_BENCHMARK_OFF = Rule(
    id="compute.cudnn_benchmark_off",
    cause="cuDNN guesses the algorithm of each convolution instead of trying them.",
    find=_cudnn_benchmark_off,
)


def _shapes_change(case: Case) -> bool:
    """Whether convolutions meet ever new inputs: several shapes that not every step has."""
    rows = [row for row in roofline_rows(case) if row["name"] == "aten::cudnn_convolution"]
    return len([row for row in rows if row["calls"] < recorded_steps(case)]) >= _MANY_SHAPES


_LEAST_LAYOUT = 0.03


def _layout_changes(case: Case) -> Iterable[Finding]:
    """Where they take 3% of the step or more, around convolutions."""
    spent, busy = category_ms(case, "layout change"), busy_ms(case)
    if (
        busy is None
        or step_share(case, spent) < _LEAST_LAYOUT
        or not category_ms(case, "convolution")
    ):
        return
    models = config(case).get("models") or []
    already = any(model.get("memory_format") == "channels_last" for model in models)
    changes = fix_named("channels_last").predict(None, case)
    predicted = predict_gain(case, changes, f"{in_ms(spent)} ms of layout changes go away", 0.4)
    if replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=LAYOUT_CHANGES.id,
        title="Tensors are turned around for every convolution",
        why=(
            f"Tensor cores convolve in NHWC, the tensors lie in NCHW: "
            f"{category_count(case, 'layout change'):,.0f} kernels a step only rearrange them, "
            f"{step_share(case, spent):.0%} of it."
        ),
        advice=(
            "The model is in channels_last already: pass its inputs through "
            "x.to(memory_format=torch.channels_last), and look for .contiguous() and .view()."
            if already
            else "Put model and inputs into memory_format=torch.channels_last."
        ),
        share=step_share(case, spent),
        evidence=(
            Evidence("layout changes", spent, "ms"),
            Evidence("of the GPU's time", 100 * spent / busy if busy else 0.0, "%"),
            Evidence("kernels per step", category_count(case, "layout change")),
        ),
        where=(
            *sites(case, "forward")[:1],
            *heaviest_kernels(case, lambda k: k["category"] == "layout change", 2),
        ),
        predicted=predicted,
        fix=None if already else FixRef("channels_last"),
        effort="two lines",
        kind="numeric",
        confidence="medium",
    )


LAYOUT_CHANGES = Rule(
    id="compute.layout_changes",
    cause="Kernels that only turn tensors from NCHW to NHWC and back.",
    find=_layout_changes,
)


_LEAST_ATTENTION = 0.05
_CPU_ATTENTION = r"^aten::(bmm|baddbmm|_softmax|_softmax_backward_data|masked_fill_?)$"


def _naive_attention(case: Case) -> Iterable[Finding]:
    """Where a softmax over square scores stands between two products, for 5% of the step."""
    if case.device == "cpu":
        found = operators_ms(case, _CPU_ATTENTION) if attention_written_out(case) else 0.0
        share = recorded_share(case, found)
        spent = share * case.step_ms
        where: tuple[Place, ...] = (Place(operator="aten::_softmax"),)
    else:
        rows = score_rows(roofline_rows(case))
        spent, where = rows_ms(case, rows), operators_of(rows)
        share = step_share(case, spent)
    if share < _LEAST_ATTENTION:
        return
    changes = fix_named("sdpa").predict(None, case)
    words = f"{in_ms(spent)} ms over the scores become one fused kernel"
    predicted = predict_gain(case, changes, words, 0.4)
    if replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=NAIVE_ATTENTION.id,
        title="Attention is written out instead of fused",
        why=(
            "Scores, mask, softmax and product each read and write a matrix as large as the "
            f"square of the sequence: {share:.0%} of the step."
        ),
        advice=(
            "Call torch.nn.functional.scaled_dot_product_attention (with is_causal or attn_mask), "
            "or pass need_weights=False to MultiheadAttention."
        ),
        share=share,
        evidence=(Evidence("over the scores", spent, "ms"),),
        where=(*sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=FixRef("sdpa"),
        effort="some lines",
        kind="numeric",
        confidence="high" if case.device == "cuda" else "medium",
    )


NAIVE_ATTENTION = Rule(
    id="compute.naive_attention",
    cause="Attention written out: the scores go through memory several times.",
    find=_naive_attention,
)


_LEAST_POINTWISE = 0.15
_CHAIN = 3.0  # pointwise operators to each product: layers have one or two
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::convolution")
_OF_ADAM = ("aten::sqrt", "aten::div")


def _unfused_pointwise(case: Case) -> Iterable[Finding]:
    """Where they take 15% of the step, three or more to each product, and nothing is compiled."""
    if is_compiled(case):
        return
    spent, count, products, where = _on_cpu(case) if case.device == "cpu" else _on_gpu(case)
    if step_share(case, spent) < _LEAST_POINTWISE or count < _CHAIN * max(products, 1.0):
        return
    changes = (
        fix_named("compile").predict("default", case)
        if case.device == "cpu"
        else [fuse_pointwise()]
    )
    words = f"{in_ms(spent)} ms of chains become one read and one write each"
    predicted = predict_gain(case, changes, words, 0.4)
    if replay_gains_nothing(case, changes, predicted):
        return
    yield Finding(
        id=UNFUSED_POINTWISE.id,
        title="Chains of pointwise operators are not fused",
        why=(
            f"{count:,.0f} pointwise operators a step take {step_share(case, spent):.0%} of it:"
            " each "
            "reads its input from memory and writes its result back."
        ),
        advice="Compile the model (torch.compile), or use the fused operator (gelu, silu, …).",
        share=step_share(case, spent),
        evidence=(
            Evidence("pointwise", spent, "ms"),
            Evidence("pointwise operators per step", count),
            Evidence("products per step", products),
        ),
        where=(*sites(case, "forward")[:1], *where),
        predicted=predicted,
        fix=FixRef("compile", "default"),
        effort="one line",
        kind="numeric",
        confidence="medium",
    )


UNFUSED_POINTWISE = Rule(
    id="compute.unfused_pointwise",
    cause="Chains of pointwise operators, each a pass over memory of its own.",
    find=_unfused_pointwise,
)


def _on_gpu(case: Case) -> tuple[float, float, float, tuple[Place, ...]]:
    where = heaviest_kernels(case, lambda k: k["category"] == "pointwise", 2)
    return (
        category_ms(case, "pointwise"),
        category_count(case, "pointwise"),
        category_count(case, *MATRIX),
        where,
    )


def _on_cpu(case: Case) -> tuple[float, float, float, tuple[Place, ...]]:
    """Of the program's own operators: those in place, and Adam's, belong to the optimizer."""
    known = operators(case)
    adam = any(o["name"] == "aten::addcdiv_" for o in known)
    ours = [o for o in known if is_pointwise(o["name"]) and not _is_optimizers(o, adam)]
    recorded = recorded_step_ms(case)
    share = per_step(case, sum(o["self_ns"] for o in ours)) / recorded if recorded else 0.0
    count = max(1, recorded_steps(case))
    products = sum(o["count"] for o in known if o["name"] in _PRODUCTS) / count
    where = tuple(Place(operator=o["name"]) for o in ours[:2])
    return share * case.step_ms, sum(o["count"] for o in ours) / count, products, where


def _is_optimizers(operator: Any, adam: bool) -> bool:
    name = operator["name"]
    return name.endswith("_") or (adam and name in _OF_ADAM)
