"""Rank rules: a rank that the others wait for, and ranks that all read the same data."""

from collections.abc import Iterable

from stepscope.analyze.run.document import StragglerCause
from stepscope.diagnose.case import Case, in_ms, rule
from stepscope.record.finding import ChangeKind, Confidence, Effort, Evidence, Finding, Place

_COMPARE = (
    "Compare the ranks: work, hooks or precision that only this one has, larger samples, a slower"
    " device, busier cores."
)
_TAKES_LONGER = {  # what takes how long, and what to do
    StragglerCause.DATA: (
        "waits {} ms longer for data",
        "Compare storage, samples and loader workers of the ranks.",
    ),
    StragglerCause.FORWARD: ("forward takes {} ms longer", _COMPARE),
    StragglerCause.BACKWARD: ("backward takes {} ms longer", _COMPARE),
    StragglerCause.OPTIMIZER: (
        "the optimizer takes {} ms longer",
        "Look for what only this rank does between backward and the end of the step.",
    ),
    StragglerCause.CHECKPOINT: (
        "checkpoints take {} ms a step",
        "Save less often, or in the background: torch.distributed.checkpoint.async_save.",
    ),
    StragglerCause.HOST: (
        "other code takes {} ms longer",
        "Move logging, metrics and plots of this rank out of the loop, or do them less often.",
    ),
}


@rule("ranks.straggler", "One rank is late in every step, and all others wait for it.")
def straggler(case: Case) -> Iterable[Finding]:
    """A rank's own work takes 5% of the step longer than every other rank's, in nearly all
    stretches of the run.
    """
    late = case.show.straggler if case.show else None
    if late is None or case.show is None:
        return
    takes, advice = _TAKES_LONGER[late.cause]
    since = f" since step {late.since_step:,}" if late.since_step > 1 else ""
    waiting = [one.waiting_for_others_ms or 0.0 for one in case.show.ranks if one.rank != late.rank]
    reason = f"rank {late.rank} is as quick as the next slowest"
    yield Finding(
        id=straggler.id,
        title=f"Rank {late.rank} is late: {takes.format(in_ms(late.extra_ms))}",
        why=f"Its own work takes {in_ms(late.late_ms)} ms per step longer than that of any other "
        f"rank{since}; meanwhile the others wait.",
        advice=advice,
        share=case.step_share(late.late_ms),
        evidence=(
            Evidence("rank", late.rank),
            Evidence("late", late.late_ms, "ms"),
            Evidence("since step", late.since_step),
            Evidence("others wait", sum(waiting) / max(1, len(waiting)), "ms"),
        ),
        where=(late.place,) if late.place else (),
        predicted=case.reach(case.step_ms - late.late_ms, reason, 0.3),
        effort=Effort.FEW_LINES,
        kind=ChangeKind.EXACT,
        confidence=Confidence.LOW if case.crowded else Confidence.MEDIUM,
    )


@rule("ranks.same_data", "All ranks train on the same batches.")
def same_data(case: Case) -> Iterable[Finding]:
    """The losses of a DDP model are equal on all ranks, to the last bit, in the first 32 steps."""
    if case.show is None or not case.show.same_data:
        return
    count = len(case.show.ranks)
    yield Finding(
        id=same_data.id,
        title="All ranks read the same data",
        why=f"The losses of all {count} ranks are equal to the last bit, step after step: "
        f"{count - 1} of {count} do work that is thrown away.",
        advice="Pass sampler=DistributedSampler(dataset) to the DataLoader, and call its "
        "set_epoch() in each epoch; without a DataLoader, choose the data by rank.",
        share=1 - 1 / count,
        evidence=(Evidence("ranks", count),),
        where=tuple(Place(one.file, one.line) for one in case.loaders[:1] if one.file),
        effort=Effort.ONE_LINE,
        kind=ChangeKind.SEMANTIC,
    )
