"""Attention written out: the scores go through memory several times."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.analyze.whatif.gains_attention import score_rows, written_out
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import gain, in_vain, operators_of, rows_ms, shapes
from stepscope.diagnose.rules._step import named_ms, part, recorded_part, sites
from stepscope.record.finding import Evidence, Finding, FixRef, Place

_LEAST = 0.05
_ON_CPU = r"^aten::(bmm|baddbmm|_softmax|_softmax_backward_data|masked_fill_?)$"


def _naive_attention(case: Case) -> Iterable[Finding]:
    """Where a softmax over square scores stands between two products, for 5% of the step."""
    if case.device == "cpu":
        found = named_ms(case, _ON_CPU) if written_out(case) else 0.0
        share = recorded_part(case, found)
        spent = share * case.step_ms
        where: tuple[Place, ...] = (Place(operator="aten::_softmax"),)
    else:
        rows = score_rows(shapes(case))
        spent, where = rows_ms(case, rows), operators_of(rows)
        share = part(case, spent)
    if share < _LEAST:
        return
    changes = change_for("sdpa", None, case)
    words = f"{in_ms(spent)} ms over the scores become one fused kernel"
    predicted = gain(case, changes, words, 0.4)
    if in_vain(case, changes, predicted):
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
