"""Saving checkpoints takes a good part of the run."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rank import LEAST
from stepscope.diagnose.rules._run import places, seconds, spent, steps, times
from stepscope.record.finding import Evidence, Finding

_MUCH = 0.05  # of the loop
_AIM = 0.01  # of the loop: often enough to lose little, seldom enough not to show


def _checkpoint_saving(case: Case) -> Iterable[Finding]:
    """Where it is more than 5% of the loop and not only the one save at its end."""
    saving, saved = spent(case, "checkpoint"), times(case, "save")
    if saving is None or saving.share < LEAST or saving.of_loop < _MUCH or saved < 2:
        return
    every = max(1.0, steps(case) / saved)
    rest = saving.loop_s - saving.seconds
    seldom = max(2, round(every * saving.seconds / (_AIM * max(rest, 1e-9))))
    left = saving.seconds * every / seldom
    yield Finding(
        id=CHECKPOINT_SAVING.id,
        title=f"Saving checkpoints takes {saving.share:.0%} of the run",
        why=(
            f"{saved} saves took {seconds(saving.seconds)} of {seconds(saving.run_s)}, about one "
            f"for every {every:.0f} steps; training stands still meanwhile."
        ),
        advice=(
            f"Save every {seldom:,} steps: this run would take "
            f"{seconds(saving.run_s - saving.seconds + left)} instead of {seconds(saving.run_s)}. "
            "Or copy the state and write it from a thread."
        ),
        share=saving.share,
        evidence=(
            Evidence("saving", saving.seconds, "s"),
            Evidence("saves", saved),
            Evidence("each", saving.seconds / saved * 1e3, "ms"),
            Evidence("the run without recording", saving.run_s, "s"),
            Evidence("the run with fewer saves", saving.run_s - saving.seconds + left, "s"),
        ),
        where=places(case, "checkpoint"),
        effort="one line",
        kind="exact",
        scope="run",
    )


CHECKPOINT_SAVING = Rule(
    id="run.checkpoint_saving",
    cause="Saving checkpoints takes a good part of the run.",
    find=_checkpoint_saving,
)
