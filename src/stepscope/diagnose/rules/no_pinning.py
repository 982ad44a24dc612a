"""Batches come from a loader in pageable memory, and each copy makes the host wait."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rules._copies import of_batches
from stepscope.diagnose.rules._loading import loading, places
from stepscope.diagnose.rules._waitgain import evidence, matters, share
from stepscope.record.finding import Finding, FixRef


def _no_pinning(case: Case) -> Iterable[Finding]:
    """Where a loader does not pin its batches and copying them holds the host up."""
    how, copies = loading(case), of_batches(case)
    if how is None or how.loader.get("pin_memory") or not copies:
        return
    lost_ms = sum(wait.ms for wait in copies)
    predicted = case.predict(
        *(change_for("pin", None, case) or ()),
        words="batches are copied from pinned memory while the host goes on",
    )
    if not matters(case, predicted, lost_ms):
        return
    yield Finding(
        id=NO_PINNING.id,
        title="Batches are copied from memory that is not pinned",
        why=(
            f"The host waits {in_ms(lost_ms)} ms in each step for its batch to be copied, because"
            " pageable memory has to pass through a buffer of the driver."
        ),
        advice=("Pass pin_memory=True to the DataLoader and non_blocking=True to `.to(device)`."),
        share=share(case, predicted, lost_ms),
        evidence=evidence(copies),
        where=tuple(dict.fromkeys((*places(how), *(wait.place for wait in copies)))),
        predicted=predicted,
        fix=FixRef("pin"),
        effort="one argument, and one in each `.to`",
        kind="exact",
        confidence="high" if case.model is not None else "medium",
    )


NO_PINNING = Rule(
    id="data.no_pinning",
    cause="Batches come from a loader in pageable memory, and each copy makes the host wait.",
    find=_no_pinning,
    symptoms=("transfer.blocking_copies", "transfer.not_overlapped"),
)
