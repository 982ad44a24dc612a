"""Evaluation takes a good part of the run."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.rules._run import places, seconds, spent, times
from stepscope.record.finding import Evidence, Finding

_MUCH = 0.2  # of the loop: looking at a tenth of the data after each epoch takes about 5%
_LEAST = 0.05  # of the run
_AIM = 0.05


def _evaluation_share(case: Case) -> Iterable[Finding]:
    """Where it is more than a fifth of the loop; a run without training is inference."""
    told = spent(case, "evaluation")
    if told is None or told.share < _LEAST or told.of_loop < _MUCH or not _trains(case):
        return
    rest = told.loop_s - told.seconds
    seldom = max(2, round(told.seconds / (_AIM / (1 - _AIM) * max(rest, 1e-9))))
    after = told.run_s - told.seconds * (1 - 1 / seldom)
    calls = times(case, "evaluation")
    yield Finding(
        id=EVALUATION_SHARE.id,
        title=f"Evaluation takes {told.share:.0%} of the run",
        why=(
            f"The model is evaluated for {seconds(told.seconds)}, against {seconds(rest)} of "
            "training."
        ),
        advice=(
            f"Evaluate {seldom} times less often, or on a part of the data: this run would take "
            f"{seconds(after)} instead of {seconds(told.run_s)}. Larger batches and "
            "torch.inference_mode() make each evaluation shorter."
        ),
        share=told.share,
        evidence=(
            Evidence("evaluation", told.seconds, "s"),
            *([Evidence("calls of the model looked up", calls)] if calls else ()),
            Evidence("the run without recording", told.run_s, "s"),
            Evidence("the run with fewer evaluations", after, "s"),
        ),
        where=places(case, "evaluation"),
        effort="one line",
        kind="exact",
        confidence="medium",
        scope="run",
    )


EVALUATION_SHARE = Rule(
    id="run.evaluation_share",
    cause="Evaluation takes a good part of the run.",
    find=_evaluation_share,
)


def _trains(case: Case) -> bool:
    """Whether the program trains at all."""
    told = spent(case, "training", "warmup")
    return told is not None and told.seconds > 0
