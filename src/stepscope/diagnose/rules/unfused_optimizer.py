"""The optimizer updates parameters in many passes where one would do."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.analyze.whatif.gains_launch import fusible, optimizer_ms
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._kernels import gain, in_vain
from stepscope.diagnose.rules._step import compiled, part, sites
from stepscope.record.finding import Evidence, Finding, FixRef

_LEAST = 0.03


def _unfused_optimizer(case: Case) -> Iterable[Finding]:
    """Where an optimizer with a fused version steps without it for 3% of the step or more."""
    name = fusible(case)
    if name is None:
        return
    device = optimizer_ms(case)
    host = case.phases.get("optimizer", 0.0)
    spent = max(device, host)
    if part(case, spent) < _LEAST or (compiled(case) and case.device == "cpu"):
        return
    words = f"the optimizer's {in_ms(spent)} ms become one pass over its state"
    changes = change_for("fused_optimizer", None, case)
    predicted = gain(case, changes, words, 0.3)
    if in_vain(case, changes, predicted):
        return
    one_by_one = case.device == "cpu" or _setting(case, "foreach") is False
    yield Finding(
        id=UNFUSED_OPTIMIZER.id,
        title=f"{name} updates parameters in many passes",
        why=(
            f"The optimizer takes {part(case, spent):.0%} of the step"
            + (", one parameter after the other" if one_by_one else ", in a dozen list operations")
            + ": each reads and writes its whole state again."
        ),
        advice=f"Pass fused=True to {name}.",
        share=part(case, spent),
        evidence=(
            Evidence("optimizer", spent, "ms"),
            *((Evidence("its kernels", device, "ms"),) if case.device == "cuda" else ()),
        ),
        where=sites(case, "optimizer"),
        predicted=predicted,
        fix=FixRef("fused_optimizer"),
        effort="one argument",
        kind="numeric",
        confidence="high" if predicted is not None and case.device == "cuda" else "medium",
    )


UNFUSED_OPTIMIZER = Rule(
    id="launch.unfused_optimizer",
    cause="The optimizer updates parameters in many passes where one would do.",
    find=_unfused_optimizer,
)


def _setting(case: Case, flag: str) -> object:
    optimizers = ((case.show or {}).get("config") or {}).get("optimizers") or [{}]
    return optimizers[0].get(flag)
