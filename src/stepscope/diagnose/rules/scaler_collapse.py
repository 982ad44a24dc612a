"""The gradient scaler throws updates away, again and again."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._step import config, sites
from stepscope.record.finding import Evidence, Finding, FixRef

_SEARCH = 16  # updates: from 65536 down to 1, which finding a scale may take
_LEAST = 0.05
_TOO_LOW = 1.0


def _scaler_collapse(case: Case) -> Iterable[Finding]:
    """Where more updates were skipped than finding a scale takes, or the scale fell below 1."""
    scaler = config(case).get("scaler") or {}
    scales = [float(scale) for scale in scaler.get("scales") or []]
    skipped = int(scaler.get("skipped_updates") or 0)
    count = int(((case.show or {}).get("steps") or {}).get("count") or 0)
    lost = max(0, skipped - _SEARCH) / count if count else 0.0
    collapsed = bool(scales) and scales[-1] < _TOO_LOW
    if not collapsed and lost < _LEAST:
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
