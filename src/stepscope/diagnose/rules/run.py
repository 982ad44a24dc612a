"""Run rules: start-up, compilation, evaluation and checkpoints that take much of the run."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.diagnose.case import Case, Rule
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import category_places, in_s, run_steps, site_count, time_spent
from stepscope.record.finding import Evidence, Finding

_LEAST_STARTUP = 0.2
# Importing torch and waking the GPU take so long in any program, and nobody can mend that.
_USUAL_S = {"cpu": 1.0, "cuda": 4.0}


def _startup_share(case: Case) -> Iterable[Finding]:
    """Where the program's own preparation is a fifth of the run and longer than seconds.

    The slowest import counts as its own where it is not torch's.
    """
    whole = time_spent(case, "setup")
    if whole is None:
        return
    slowest = ((case.show or {}).get("account_places") or {}).get("imports") or {}
    foreign = slowest if not slowest.get("module", "torch").startswith("torch") else {}
    own = whole.seconds + foreign.get("seconds", 0.0)
    share = own / whole.run_s
    if share < _LEAST_STARTUP or own < _USUAL_S[case.device]:
        return
    yield Finding(
        id=STARTUP_SHARE.id,
        title=f"Getting ready takes {share:.0%} of the run",
        why=(
            f"{in_s(own)} of {in_s(whole.run_s)} go by before the first step, in the "
            f"program's own preparation{_importing(foreign)}."
        ),
        advice=(
            "Prepare the data once and keep the result (numpy.save, a memory map); build in one "
            f"operation what a loop builds. Without it this run would take "
            f"{in_s(whole.run_s - own)} instead of {in_s(whole.run_s)}; "
            "`stepscope run --python` names the functions."
        ),
        share=share,
        evidence=(
            Evidence("setup", whole.seconds, "s"),
            *(
                [Evidence(f"import of {foreign['module']}", foreign["seconds"], "s")]
                if foreign
                else ()
            ),
            Evidence("the run without recording", whole.run_s, "s"),
        ),
        effort="some lines",
        kind="exact",
        confidence="medium",
        scope="run",
    )


STARTUP_SHARE = Rule(
    id="run.startup_share",
    cause="What comes before the first step takes a good part of the run.",
    find=_startup_share,
)


def _importing(module: Mapping[str, Any]) -> str:
    return f" and in importing {module['module']}" if module else ""


_LEAST_COMPILING = 0.1
_USUAL_RECOMPILES = 2  # recompilations: one for dynamic shapes and one for evaluation are usual


def _compile_share(case: Case) -> Iterable[Finding]:
    """Where it is more than 10% of the run, and not for compiling the same again and again."""
    told = time_spent(case, "compile")
    counted = (case.show or {}).get("compile") or {}
    again = int(counted.get("recompiles") or 0)
    if told is None or told.share < _LEAST_COMPILING or again > _USUAL_RECOMPILES:
        return
    graphs = counted.get("graphs")
    yield Finding(
        id=COMPILE_SHARE.id,
        title=f"Compiling takes {told.share:.0%} of the run",
        why=(
            f"torch.compile worked for {in_s(told.seconds)} of {in_s(told.run_s)}; a run of "
            "this length has few steps to gain that back in."
        ),
        advice=(
            "Keep the compiled code between runs (a TORCHINDUCTOR_CACHE_DIR that stays when the "
            "machine goes), compile only the repeated block, or leave short "
            f"runs uncompiled: this one would take {in_s(told.run_s - told.seconds)} and what "
            "its steps then lose."
        ),
        share=told.share,
        evidence=(
            Evidence("compiling", told.seconds, "s"),
            *([Evidence("graphs", int(graphs))] if graphs is not None else ()),
            Evidence("the run without recording", told.run_s, "s"),
        ),
        where=category_places(case, "compile"),
        effort="an environment variable",
        kind="exact",
        confidence="medium",
        scope="run",
    )


COMPILE_SHARE = Rule(
    id="run.compile_share",
    cause="torch.compile takes a good part of the run.",
    find=_compile_share,
)


_LEAST_EVALUATION_OF_LOOP = (
    0.2  # of the loop: looking at a tenth of the data after each epoch takes about 5%
)
_LEAST_EVALUATION_OF_RUN = 0.05  # of the run
_EVALUATION_AIM = 0.05


def _evaluation_share(case: Case) -> Iterable[Finding]:
    """Where it is more than a fifth of the loop; a run without training is inference."""
    told = time_spent(case, "evaluation")
    if (
        told is None
        or told.share < _LEAST_EVALUATION_OF_RUN
        or told.of_loop < _LEAST_EVALUATION_OF_LOOP
        or not _trains(case)
    ):
        return
    rest = told.loop_s - told.seconds
    seldom = max(
        2, round(told.seconds / (_EVALUATION_AIM / (1 - _EVALUATION_AIM) * max(rest, 1e-9)))
    )
    after = told.run_s - told.seconds * (1 - 1 / seldom)
    calls = site_count(case, "evaluation")
    yield Finding(
        id=EVALUATION_SHARE.id,
        title=f"Evaluation takes {told.share:.0%} of the run",
        why=(f"The model is evaluated for {in_s(told.seconds)}, against {in_s(rest)} of training."),
        advice=(
            f"Evaluate {seldom} times less often, or on a part of the data: this run would take "
            f"{in_s(after)} instead of {in_s(told.run_s)}. Larger batches and "
            "torch.inference_mode() make each evaluation shorter."
        ),
        share=told.share,
        evidence=(
            Evidence("evaluation", told.seconds, "s"),
            *([Evidence("calls of the model looked up", calls)] if calls else ()),
            Evidence("the run without recording", told.run_s, "s"),
            Evidence("the run with fewer evaluations", after, "s"),
        ),
        where=category_places(case, "evaluation"),
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
    told = time_spent(case, "training", "warmup")
    return told is not None and told.seconds > 0


_LEAST_SAVING_OF_LOOP = 0.05  # of the loop
_SAVING_AIM = 0.01  # of the loop: often enough to lose little, seldom enough not to show


def _checkpoint_saving(case: Case) -> Iterable[Finding]:
    """Where it is more than 5% of the loop and not only the one save at its end."""
    saving, saved = time_spent(case, "checkpoint"), site_count(case, "save")
    if (
        saving is None
        or saving.share < LEAST_GAIN
        or saving.of_loop < _LEAST_SAVING_OF_LOOP
        or saved < 2
    ):
        return
    every = max(1.0, run_steps(case) / saved)
    rest = saving.loop_s - saving.seconds
    seldom = max(2, round(every * saving.seconds / (_SAVING_AIM * max(rest, 1e-9))))
    left = saving.seconds * every / seldom
    yield Finding(
        id=CHECKPOINT_SAVING.id,
        title=f"Saving checkpoints takes {saving.share:.0%} of the run",
        why=(
            f"{saved} saves took {in_s(saving.seconds)} of {in_s(saving.run_s)}, about one "
            f"for every {every:.0f} steps; training stands still meanwhile."
        ),
        advice=(
            f"Save every {seldom:,} steps: this run would take "
            f"{in_s(saving.run_s - saving.seconds + left)} instead of {in_s(saving.run_s)}. "
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
        where=category_places(case, "checkpoint"),
        effort="one line",
        kind="exact",
        scope="run",
    )


CHECKPOINT_SAVING = Rule(
    id="run.checkpoint_saving",
    cause="Saving checkpoints takes a good part of the run.",
    find=_checkpoint_saving,
)
