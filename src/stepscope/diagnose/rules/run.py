"""Run rules: start-up, compilation, evaluation and checkpoints that take much of the run."""

from collections.abc import Iterable

from stepscope.diagnose.case import Case, rule
from stepscope.diagnose.ranking import LEAST_GAIN
from stepscope.diagnose.rules.facts import category_places, in_s, site_count, time_spent
from stepscope.record.finding import Confidence, Effort, Evidence, Finding, Scope

_LEAST_STARTUP = 0.2
# Importing torch and initialising the GPU take this long in any program.
_USUAL_S = {"cpu": 1.0, "cuda": 4.0}


@rule("run.startup_share", "Start-up, before the first step, takes much of the run.")
def startup_share(case: Case) -> Iterable[Finding]:
    """The program's own setup and imports of libraries other than torch take 20% of the run, and
    more than seconds.
    """
    whole = time_spent(case, "setup")
    if whole is None:
        return
    imports = case.show.account_places.get("imports") if case.show else None
    imported = imports.libraries_s if imports else 0.0
    told = [  # what is a part of it worth mentioning: seconds, where, and the advice
        one
        for one in (
            (
                imported,
                f"importing libraries, {imports.library} the slowest" if imports else "",
                "Import what is slow to import only where it is used, and less of it: "
                "`python -X importtime` names the parts.",
            ),
            (
                whole.seconds,
                "in its own setup",
                "Preprocess data once and keep the result (numpy.save, a memory map); vectorise "
                "loops; `stepscope run --python` names the functions.",
            ),
        )
        if one[0] >= LEAST_GAIN * whole.run_s
    ]
    told.sort(key=lambda one: -one[0])
    own = sum(seconds for seconds, _, _ in told)
    share = own / whole.run_s
    if share < _LEAST_STARTUP or own < _USUAL_S[case.device]:
        return
    yield Finding(
        id=startup_share.id,
        title=f"Start-up takes {share:.0%} of the run",
        why=f"The program spends {in_s(own)} of {in_s(whole.run_s)} before the first step, "
        + " and ".join(where for _, where, _ in told)
        + ".",
        advice=" ".join(advice for _, _, advice in told)
        + f" Without it this run would take {in_s(whole.run_s - own)} instead of "
        f"{in_s(whole.run_s)}.",
        share=share,
        evidence=(
            Evidence("setup", whole.seconds, "s"),
            *([Evidence("importing libraries", imported, "s")] if imported else ()),
            Evidence("run without recording", whole.run_s, "s"),
        ),
        confidence=Confidence.MEDIUM,
        scope=Scope.RUN,
    )


_LEAST_COMPILING = 0.1
_USUAL_RECOMPILES = 2  # recompilations: one for dynamic shapes and one for evaluation are normal


@rule("run.compile_share", "torch.compile takes much of the run.")
def compile_share(case: Case) -> Iterable[Finding]:
    """Compiling takes 10% of the run, without repeated recompiling."""
    told = time_spent(case, "compile")
    counted = case.show.compile if case.show else None
    again = counted.recompiles if counted else 0
    if told is None or told.share < _LEAST_COMPILING or again > _USUAL_RECOMPILES:
        return
    yield Finding(
        id=compile_share.id,
        title=f"Compiling takes {told.share:.0%} of the run",
        why=f"torch.compile took {in_s(told.seconds)} of {in_s(told.run_s)}; a run this short has "
        "few steps to make up for it.",
        advice="Keep compiled code between runs (a persistent TORCHINDUCTOR_CACHE_DIR), compile "
        "only the repeated block, or skip compiling in short runs: this one would take "
        f"{in_s(told.run_s - told.seconds)} plus what its steps lose.",
        share=told.share,
        evidence=(
            Evidence("compiling", told.seconds, "s"),
            *([Evidence("graphs", counted.graphs)] if counted else ()),
            Evidence("run without recording", told.run_s, "s"),
        ),
        where=category_places(case, "compile"),
        effort=Effort.ENVIRONMENT,
        confidence=Confidence.MEDIUM,
        scope=Scope.RUN,
    )


_LEAST_EVALUATION_OF_LOOP = 0.2  # evaluating a tenth of the data each epoch takes about 5%
_LEAST_EVALUATION_OF_RUN = 0.05  # of the run
_EVALUATION_AIM = 0.05


@rule("run.evaluation_share", "Evaluation takes much of the run.")
def evaluation_share(case: Case) -> Iterable[Finding]:
    """Evaluation takes 20% of the loop of a program that trains."""
    told = time_spent(case, "evaluation")
    trained = time_spent(case, "training", "warmup")
    if told is None or trained is None or trained.seconds <= 0:
        return
    if told.share < _LEAST_EVALUATION_OF_RUN or told.of_loop < _LEAST_EVALUATION_OF_LOOP:
        return
    rest = told.loop_s - told.seconds
    allowed = _EVALUATION_AIM / (1 - _EVALUATION_AIM) * max(rest, 1e-9)
    times = case.show.steps.evaluations if case.show else None
    seldom = max(2, round(told.seconds / allowed))
    once = times is not None and times < 2
    if not once and times is not None:
        seldom = min(seldom, times)
    after = told.run_s - told.seconds * (1 - 1 / seldom)
    less = "on part of the data" if once else f"{seldom}× less often, or on part of the data"
    calls = site_count(case, "evaluation")
    yield Finding(
        id=evaluation_share.id,
        title=f"Evaluation takes {told.share:.0%} of the run",
        why=f"Evaluation takes {in_s(told.seconds)}, training {in_s(rest)}.",
        advice=f"Evaluate {less}: this run would take {in_s(after)} instead of {in_s(told.run_s)}. "
        "Larger batches and torch.inference_mode() shorten each evaluation.",
        share=told.share,
        evidence=(
            Evidence("evaluation", told.seconds, "s"),
            *([Evidence("evaluations", times)] if times is not None else ()),
            *([Evidence("model calls", calls)] if calls else ()),
            Evidence("run without recording", told.run_s, "s"),
            Evidence(f"run with {1 / seldom:.0%} of it", after, "s"),
        ),
        where=category_places(case, "evaluation"),
        effort=Effort.ONE_LINE,
        confidence=Confidence.MEDIUM,
        scope=Scope.RUN,
    )


_LEAST_SAVING_OF_LOOP = 0.05  # of the loop
_SAVING_AIM = 0.01  # of the loop: saves often enough to lose little, rarely enough not to matter


@rule("run.checkpoint_saving", "Saving checkpoints takes much of the run.")
def checkpoint_saving(case: Case) -> Iterable[Finding]:
    """Saving takes 5% of the loop, more than the one save at its end."""
    saving, saved = time_spent(case, "checkpoint"), site_count(case, "save")
    if saving is None or saving.share < LEAST_GAIN or saved < 2:
        return
    if saving.of_loop < _LEAST_SAVING_OF_LOOP:
        return
    every = max(1.0, case.run_steps / saved)
    rest = saving.loop_s - saving.seconds
    seldom = max(2, round(every * saving.seconds / (_SAVING_AIM * max(rest, 1e-9))))
    after = saving.run_s - saving.seconds + saving.seconds * every / seldom
    yield Finding(
        id=checkpoint_saving.id,
        title=f"Saving checkpoints takes {saving.share:.0%} of the run",
        why=f"{saved} saves took {in_s(saving.seconds)} of {in_s(saving.run_s)}, one about every "
        f"{every:.0f} steps; training stops meanwhile.",
        advice=f"Save every {seldom:,} steps: this run would take {in_s(after)} instead of "
        f"{in_s(saving.run_s)}. Or copy the state and write it from a thread.",
        share=saving.share,
        evidence=(
            Evidence("saving", saving.seconds, "s"),
            Evidence("saves", saved),
            Evidence("per save", saving.seconds / saved * 1e3, "ms"),
            Evidence("run without recording", saving.run_s, "s"),
            Evidence("run with fewer saves", after, "s"),
        ),
        where=category_places(case, "checkpoint"),
        effort=Effort.ONE_LINE,
        scope=Scope.RUN,
    )
