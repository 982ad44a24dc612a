"""Matrix products run in fp32 or TF32, where bf16 would be faster."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.analyze.whatif.gains_precision import ON_CPU
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import gain, in_vain
from stepscope.diagnose.rules._precision import advice, best, lower_dtype, together, wide_ms
from stepscope.diagnose.rules._step import (
    busy_ms,
    config,
    named_ms,
    neck_and_neck,
    part,
    recorded_step_ms,
    sites,
)
from stepscope.record.finding import Evidence, Finding, FixRef

_LEAST = 0.03
_LEAST_ON_CPU = 0.3


def _low_precision(case: Case) -> Iterable[Finding]:
    """Where products and convolutions in fp32 or TF32 take 3% of the step or more.

    On a processor only where `doctor` measured that bf16 is surely faster there.
    """
    if case.device == "cpu":
        yield from _on_cpu(case)
        return
    wide, where = wide_ms(case)
    busy = busy_ms(case)
    if busy is None or part(case, wide) < _LEAST or config(case).get("autocast"):
        return
    fix, predicted, other = best(case, wide)
    if in_vain(case, change_for(fix.name, fix.value, case), predicted):
        return
    cores = (case.trace or {}).get("tensor_cores") or {}
    on = cores.get("share")
    step = ((case.trace or {}).get("roofline") or {}).get("step") or {}
    close = neck_and_neck(case)
    yield Finding(
        id=LOW_PRECISION.id,
        title="fp32 arithmetic leaves the tensor cores idle",
        why=(
            f"Models and data are in fp32: tensor cores work in {on or 0:.0%} of the GPU's time, "
            f"and everything it reads and writes is twice as large as in {lower_dtype(case)}."
            + (
                f" Host and device are close together (the GPU works {in_ms(busy)} ms)."
                if close
                else ""
            )
        ),
        advice=advice(case, fix, other) + (together(case, fix) if close else ""),
        share=part(case, busy if close or busy > 0.5 * case.step_ms else wide),
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
    changes = change_for("amp", "bf16", case)
    recorded = recorded_step_ms(case)
    products = named_ms(case, ON_CPU)
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
        predicted=gain(case, changes, words, 0.6),
        fix=FixRef("amp", "bf16"),
        effort="one line",
        kind="numeric",
        confidence="low",
    )
