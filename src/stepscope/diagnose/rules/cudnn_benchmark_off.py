"""cuDNN guesses the algorithm of each convolution instead of trying them."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import category_ms, gain, in_vain, operators_of, shapes
from stepscope.diagnose.rules._step import part, sites, steps, switches
from stepscope.record.finding import Evidence, Finding, FixRef

_LEAST = 0.2
_MANY_SHAPES = 4  # every new one would be tried first
_FAR = 0.5  # of the ceiling: convolutions that reach it need no other algorithm


def _cudnn_benchmark_off(case: Case) -> Iterable[Finding]:
    """Where convolutions of constant shapes take a fifth of the step, far from the ceiling."""
    if switches(case).get("cudnn_benchmark") is not False:
        return
    if switches(case).get("cudnn_deterministic") or switches(case).get("deterministic"):
        return
    spent = category_ms(case, "convolution")
    rows = [row for row in shapes(case) if row["category"] == "convolution"]
    whole = sum(row["time_ns"] for row in rows)
    reached = (
        sum((row.get("share") or 0.0) * row["time_ns"] for row in rows) / whole if whole else 0
    )
    if part(case, spent) < _LEAST or reached >= _FAR or _changing(case):
        return
    changes = change_for("cudnn_benchmark", None, case)
    words = f"the {in_ms(spent)} ms of convolutions take their fastest algorithms"
    predicted = gain(case, changes, words, 0.9)
    if in_vain(case, changes, predicted):
        return
    yield Finding(
        id=CUDNN_BENCHMARK_OFF.id,
        title="cuDNN does not look for the fastest algorithms",
        why=(
            f"Convolutions take {part(case, spent):.0%} of the step at {reached:.0%} of what the "
            "GPU could do; their shapes do not change, so trying the algorithms once would pay."
        ),
        advice="Set torch.backends.cudnn.benchmark = True at the beginning.",
        share=part(case, spent),
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


def _changing(case: Case) -> bool:
    """Whether convolutions meet ever new inputs: several shapes that not every step has."""
    rows = [row for row in shapes(case) if row["name"] == "aten::cudnn_convolution"]
    return len([row for row in rows if row["calls"] < steps(case)]) >= _MANY_SHAPES
