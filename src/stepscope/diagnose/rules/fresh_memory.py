"""Workers allocate fresh shared memory for every large batch."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.analyze.whatif.gains import change_for
from stepscope.analyze.whatif.priors import HAND_OVER_MS_PER_MB, RECYCLED, WORKER_MS_PER_MB
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._loading import evidence, loading, places
from stepscope.record.finding import Evidence, Finding, FixRef

_LARGE_MB = 1.0


def _fresh_memory(case: Case) -> Iterable[Finding]:
    """Where workers with large batches set the pace, or the step waits for what they hand over."""
    how, show = loading(case), case.show or {}
    mb = ((show.get("steps") or {}).get("batch_bytes") or 0) / 1e6
    if how is None or not how.workers or mb < _LARGE_MB or _recycled(show):
        return
    predicted = case.predict(
        *(change_for("recycle", None, case) or ()),
        words="workers write batches into memory that was used before",
        doubt=0.5,
    )
    if predicted is None or 1 - 1 / predicted.speedup < LEAST:
        return
    yield Finding(
        id=FRESH_MEMORY.id,
        title=f"Each batch of {mb:.3g} MB is handed over in fresh memory",
        why=(
            f"By what other machines took, a worker needs about {in_ms(mb * WORKER_MS_PER_MB)} ms"
            " for new shared memory to put a batch in, and the training process"
            f" {in_ms(mb * HAND_OVER_MS_PER_MB)} ms to take it over and to give it back;"
            f" {1 - RECYCLED:.0%} of both can be saved."
        ),
        advice=(
            "Run it with --fix recycle, or give the DataLoader a collate_fn that stacks samples"
            " into shared tensors which are used again."
        ),
        share=1 - 1 / predicted.speedup,
        evidence=(*evidence(how), Evidence("a batch", mb, "MB")),
        where=places(how),
        predicted=predicted,
        fix=FixRef("recycle"),
        effort="a collate function with buffers of its own",
        kind="exact",
        confidence="medium",
    )


FRESH_MEMORY = Rule(
    id="data.fresh_memory",
    cause="Workers allocate fresh shared memory for every large batch.",
    find=_fresh_memory,
)


def _recycled(show: Mapping[str, Any]) -> bool:
    fixes = show.get("fixes") or ()
    return any(one["name"] == "recycle" and one["state"] == "applied" for one in fixes)
