"""Batches are copied to the device while it computes nothing."""

from collections.abc import Iterable

from stepscope.analyze.whatif.gains import change_for
from stepscope.diagnose.case import Case, Rule, in_ms
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._copies import of_batches, pinned, recorded, repeated
from stepscope.diagnose.rules._loading import loading
from stepscope.diagnose.rules._step import part, per_step
from stepscope.record.finding import Evidence, Finding, FixRef


def _copies_not_overlapped(case: Case) -> Iterable[Finding]:
    """Where copies ahead, beside compute, gain more than copies that do not wait."""
    copies = recorded(case, "HtoD")
    exposed_ms = sum(per_step(case, one["total_ns"] * (1 - one["overlapped"])) for one in copies)
    share = part(case, exposed_ms)
    if case.device != "cuda" or share < LEAST or _only_repeated(case):
        return
    predicted = case.predict(
        *(change_for("prefetch", None, case) or ()),
        words=f"{in_ms(exposed_ms)} ms of copying go on while the step before computes",
    )
    first = case.predict(*(change_for("pin", None, case) or ()), words="")
    reached = first.step_ms if first is not None else case.step_ms
    if case.model is not None and (predicted is None or predicted.step_ms > (1 - LEAST) * reached):
        return
    total_ms = sum(per_step(case, one["total_ns"]) for one in copies)
    moved = sum(one["bytes"] or 0 for one in copies)
    rate = moved / max(1, sum(one["total_ns"] for one in copies))  # bytes a ns: GB a second
    lines = (*of_batches(case), *pinned(case))
    yield Finding(
        id=COPIES_NOT_OVERLAPPED.id,
        title="The GPU computes nothing while batches are copied",
        why=(
            f"Copies to the device take {in_ms(total_ms)} ms of each step, and for"
            f" {in_ms(exposed_ms)} ms of that nothing else goes on."
        ),
        advice=(
            "Copy the next batch on a stream of its own while the present one is worked on, from"
            " pinned memory; or send less: integers and bytes, converted on the device."
        ),
        share=share,
        evidence=(
            Evidence("copies to the device", total_ms, "ms a step"),
            Evidence("of it while nothing computes", exposed_ms, "ms a step"),
            Evidence("rate", rate, "GB/s"),
        ),
        where=tuple(dict.fromkeys(wait.place for wait in lines))[:6],
        predicted=predicted,
        fix=FixRef("prefetch") if loading(case) is not None else None,
        effort="some lines",
        kind="exact",
        confidence="high" if case.model is not None else "medium",
    )


COPIES_NOT_OVERLAPPED = Rule(
    id="transfer.not_overlapped",
    cause="Batches are copied to the device while it computes nothing.",
    find=_copies_not_overlapped,
)


def _only_repeated(case: Case) -> bool:
    """Whether nothing is copied but what need not be, which is another rule's."""
    again = {wait.place for wait, _ in repeated(case)}
    return bool(again) and again >= {wait.place for wait in (*of_batches(case), *pinned(case))}
