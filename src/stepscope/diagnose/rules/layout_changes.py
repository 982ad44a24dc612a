"""Kernels that only turn tensors from NCHW to NHWC and back."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import category_ms, count_of, gain, heaviest, in_vain
from stepscope.diagnose.rules._step import busy_ms, config, part, sites
from stepscope.record.finding import Evidence, Finding, FixRef

_LEAST = 0.03


def _layout_changes(case: Case) -> Iterable[Finding]:
    """Where they take 3% of the step or more, around convolutions."""
    spent, busy = category_ms(case, "layout change"), busy_ms(case)
    if busy is None or part(case, spent) < _LEAST or not category_ms(case, "convolution"):
        return
    models = config(case).get("models") or []
    already = any(model.get("memory_format") == "channels_last" for model in models)
    changes = change_for("channels_last", None, case)
    predicted = gain(case, changes, f"{in_ms(spent)} ms of layout changes go away", 0.4)
    if in_vain(case, changes, predicted):
        return
    yield Finding(
        id=LAYOUT_CHANGES.id,
        title="Tensors are turned around for every convolution",
        why=(
            f"Tensor cores convolve in NHWC, the tensors lie in NCHW: "
            f"{count_of(case, 'layout change'):,.0f} kernels a step only rearrange them, "
            f"{part(case, spent):.0%} of it."
        ),
        advice=(
            "The model is in channels_last already: pass its inputs through "
            "x.to(memory_format=torch.channels_last), and look for .contiguous() and .view()."
            if already
            else "Put model and inputs into memory_format=torch.channels_last."
        ),
        share=part(case, spent),
        evidence=(
            Evidence("layout changes", spent, "ms"),
            Evidence("of the GPU's time", 100 * spent / busy if busy else 0.0, "%"),
            Evidence("kernels per step", count_of(case, "layout change")),
        ),
        where=(
            *sites(case, "forward")[:1],
            *heaviest(case, lambda k: k["category"] == "layout change", 2),
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
