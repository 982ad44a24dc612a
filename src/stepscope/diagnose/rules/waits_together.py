"""Several waits, none of which alone costs anything: the next one absorbs it."""

from collections.abc import Iterable

from stepscope.analyze.whatif import changes
from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._copies import uploads
from stepscope.diagnose.rules._waitgain import evidence, gain, matters, share
from stepscope.diagnose.rules._waits import grouped
from stepscope.record.finding import Finding


def _sync_together(case: Case) -> Iterable[Finding]:
    """Where dropping all waits gains, and dropping those of any one kind does not."""
    groups, copied = grouped(case), uploads(case)
    if case.model is None or len(groups) + bool(copied) < 2:
        return
    single = [gain(case, some, "") for some in groups.values()]
    single.append(case.predict(changes.unblock_copies(), words=""))
    if any(matters(case, one, 0.0) for one in single):
        return
    all_ = sorted((w for some in (*groups.values(), copied) for w in some), key=lambda w: -w.ms)
    predicted = case.predict(
        changes.drop_waits(),
        changes.unblock_copies(),
        words=f"the host waits at none of {len(all_)} lines and prepares the next step instead",
    )
    if not matters(case, predicted, 0.0):
        return
    yield Finding(
        id=SYNC_TOGETHER.id,
        title=f"The host waits for the GPU at {len(all_)} lines of the loop",
        why=(
            "Removing any one of these waits gains nothing, because the next one waits for the"
            " same work; without all of them the host runs ahead of the device."
        ),
        advice=(
            "Remove them together: keep values on the device, delete synchronize(), copy batches"
            " from pinned memory with non_blocking=True."
        ),
        share=share(case, predicted, 0.0),
        evidence=evidence(all_),
        where=tuple(dict.fromkeys(wait.place for wait in all_))[:6],
        predicted=predicted,
        effort="some lines",
        kind="exact",
        confidence="medium",
    )


SYNC_TOGETHER = Rule(
    id="sync.together",
    cause="Several waits, none of which alone costs anything: the next one absorbs it.",
    find=_sync_together,
    family="wait",
)
